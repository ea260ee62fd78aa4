"""SQL92 filters: expressions over a message's properties, compiled once for the broker and for offline tools.

Logic is three-valued: true, false and null (None). A message for which evaluation fails does not pass.

Source: ``SqlFilter``, ``SelectorParser``.
"""

from dataclasses import dataclass
from typing import Final

from rmq_formats.sql92.nodes import Evaluate, Properties
from rmq_formats.sql92.parser import Parser
from rmq_formats.sql92.values import SqlError

__all__ = ["MAX_EXPRESSION_CHARS", "Expression", "SqlError", "compile_expression"]

MAX_EXPRESSION_CHARS: Final = 32_768  # limit in characters: a longer text is no filter, and would parse for too long


@dataclass(frozen=True, slots=True)
class Expression:
    """Compiled expression; called with properties, it returns whether they fulfil it.

    ``evaluate`` returns True, False, or None where null values leave it open; it raises SqlError where it cannot be
    evaluated for the properties.
    """

    text: str
    names: tuple[str, ...]
    evaluate: Evaluate

    def __call__(self, properties: Properties) -> bool:
        """Return whether properties fulfil the expression; false if it cannot be evaluated for them."""
        try:
            return self.evaluate(properties) is True
        except SqlError:
            return False


def compile_expression(text: str) -> Expression:
    """Compile an expression. Raises SqlError if the text is none."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise SqlError("an expression that is too long")
    parser = Parser(text)
    node = parser.expression()
    return Expression(text, tuple(sorted(parser.names)), node.evaluate)
