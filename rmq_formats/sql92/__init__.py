"""SQL92 filters: an expression over a message's properties, compiled once for the broker and for offline tools.

Truth has three values, and None is the third. What cannot be evaluated for some properties lets them not through.

Source: ``SqlFilter``, ``SelectorParser``.
"""

from dataclasses import dataclass
from typing import Final

from rmq_formats.sql92.nodes import Evaluate, Properties
from rmq_formats.sql92.parser import Parser
from rmq_formats.sql92.values import SqlError, Value

__all__ = ["MAX_EXPRESSION_CHARS", "Expression", "SqlError", "compile_expression"]

MAX_EXPRESSION_CHARS: Final = 32_768  # more is no filter; its parse would take without end


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that compiles; called with properties, it says whether they fulfil it.

    Attributes:
        text: as it was given.
        names: the properties that it looks at.
    """

    text: str
    names: tuple[str, ...]
    _evaluate: Evaluate

    def evaluate(self, properties: Properties) -> Value:
        """True, False, or None where null values leave it open.

        Raises:
            SqlError: it cannot be evaluated for these properties.
        """
        return self._evaluate(properties)

    def __call__(self, properties: Properties) -> bool:
        """Whether properties fulfil it; those that it cannot be evaluated for do not."""
        try:
            return self._evaluate(properties) is True
        except SqlError:
            return False


def compile_expression(text: str) -> Expression:
    """Compile an expression.

    Raises:
        SqlError: it is none.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise SqlError("an expression that is too long")
    parser = Parser(text)
    node = parser.expression()
    return Expression(text, tuple(sorted(parser.names)), node.evaluate)
