"""SQL92 filters, with what the original's classes said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.broker.sql92 import MAX_DEPTH, compile_expression
from rmq_core.broker.sql92_values import SqlError

PROPERTIES = {"a": "5", "b": "abc", "f": "3.14", "t": "true", "neg": "-7", "TAGS": "TagA", "e": ""}
TRUE = """a > 3|a >= 5|a = 5|a = '5'|a = 5.0|b = 'abc'|missing IS NULL|a IS NOT NULL|a BETWEEN 1 AND 9
a NOT BETWEEN 1 AND 4|b IN ('abc','d')|t = TRUE|NOT t = TRUE|a > 9 OR b = 'abc'|missing > 3 OR a > 3|b CONTAINS 'bc'
b NOT CONTAINS 'z'|b STARTSWITH 'ab'|b ENDSWITH 'bc'|f < 3.2|f = 3.14|a > -1|neg < 0|neg = -7|a > 3L|1 = 1|TRUE|a = a
a = 5 -- c|/* c */ a = 5|e = ''|a is not null and a > 3"""
FALSE = """a < 5|a <> 5|b <> 'abc'|b NOT IN ('abc','d')|t|t = FALSE|missing CONTAINS 'x'|missing NOT CONTAINS 'x'|f > a
a > 99999999999|a LIKE 'x'|a + 1 = 6"""
NULL = """missing > 3|missing = 1|missing <> 1|missing IN ('x')|missing NOT IN ('x')|NOT (missing > 3)
missing > 3 AND a > 3"""
FAILING = "b > 3|f > 3|a > b"
NO_EXPRESSION = "b > 'abb'|a > '3'|a == 5|a != 5|a BETWEEN 9 AND 1|a in (5)|`a` = 5||a =|(a = 5|a > 012"


def cases(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


@pytest.mark.parametrize("expression", cases(TRUE))
def test_true_expressions_match(expression: str) -> None:
    holds = compile_expression(expression)
    # The original reads NOT t = TRUE as (NOT t) = TRUE, where NOT of a text is true.
    assert holds(PROPERTIES)


@pytest.mark.parametrize("expression", cases(FALSE) + cases(NULL) + cases(FAILING))
def test_what_is_false_null_or_fails_does_not_match(expression: str) -> None:
    assert not compile_expression(expression)(PROPERTIES)


@pytest.mark.parametrize("expression", cases(NULL) + cases(FAILING))
def test_null_is_not_false(expression: str) -> None:
    assert not compile_expression(f"NOT ({expression})")(PROPERTIES)


@pytest.mark.parametrize("expression", cases(NO_EXPRESSION))
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(SqlError):
        compile_expression(expression)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(SqlError, match="too deep"):
        compile_expression("(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1))


@given(st.text(alphabet="ab'()=<>-+ 015.ANDORNTISULLBEWHC,", max_size=40))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        holds = compile_expression(text)
    except SqlError:
        return
    assert holds(PROPERTIES) in (True, False)
