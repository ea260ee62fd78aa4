"""SQL92 filters, with what the original's classes said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.sql92 import SqlError, compile_expression
from rmq_formats.sql92.parser import MAX_DEPTH

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
NO_EXPRESSION = "b > 'abb'|a > '3'|a == 5|a != 5|a BETWEEN 9 AND 1|a in (5)|`a` = 5||a =|(a = 5"


# Not of the facts' vectors, but of the same classes; ``test_sql92_against_java.py`` asks these.
MORE_TRUE = r"""missing = missing|a <> missing|a > 012|a > 0L AND nothing of this|a NOT BETWEEN 9 AND 1|n > 1.0
1 = TRUE OR TRUE|neg = -7 AND a = +5|h = 3.0|s = 2.5|a = 5 -- c|(a > 3) = TRUE|b NOT IN ('x')|z < 0.1|a = 5L"""
MORE_FALSE = r"""a = missing|b CONTAINS ''|b NOT CONTAINS ''|b STARTSWITH ''|b NOT ENDSWITH ''|a BETWEEN -1 AND -5
1 = TRUE|z = 0|-b = 1|- -a > 1|a > -missing|TRUE = t|(a > 3) = t|big > 3|b > 3 OR TRUE"""
MORE_NO_EXPRESSION = r"""a = NULL|NULL = a|a <> NULL|TRUE = 1|'a' IN ('a')|-a|5|'x'|a > 0.0
a = 5 /* c|a NOT 5|a BETWEEN NULL AND 1|a > TRUE|(a = 5) > 3
a IS 5|a > 99999999999999999999|a = 1e999
NOT 5|a AND 5|a BETWEEN 'a' AND 'b'|a > --5 /|#"""
MORE_PROPERTIES = PROPERTIES | {"n": "NaN", "h": "0x1.8p1", "s": " 2.5d ", "z": "-0.0", "big": "99999999999"}


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


@pytest.mark.parametrize("expression", cases(MORE_TRUE))
def test_more_true_expressions_match(expression: str) -> None:
    assert compile_expression(expression)(MORE_PROPERTIES)


@pytest.mark.parametrize("expression", cases(MORE_FALSE))
def test_more_that_is_false_or_fails_does_not_match(expression: str) -> None:
    assert not compile_expression(expression)(MORE_PROPERTIES)


@pytest.mark.parametrize("expression", cases(MORE_NO_EXPRESSION))
def test_more_that_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(SqlError):
        compile_expression(expression)


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("b > 'abb'", "java.lang.RuntimeException: Value ''abb'' cannot be compared."),
        ("a = NULL", "java.lang.RuntimeException: 'NULL' cannot be compared."),
        (
            "a BETWEEN 9 AND 1",
            "java.lang.RuntimeException: Illegal values of between, left value(9) must less than or "
            "equal to right value(1)",
        ),
        (
            "-a",
            "org.apache.rocketmq.filter.parser.ParseException: Expression will not result in a boolean value: (- a)",
        ),
        ("a == 5", 'org.apache.rocketmq.filter.parser.ParseException: Encountered " "=" "= "" at line 1, column 4.'),
        (
            "a in\n(5)",
            "org.apache.rocketmq.filter.parser.ParseException: "
            'Encountered " <DECIMAL_LITERAL> "5 "" at line 2, column 2.',
        ),
    ],
)
def test_an_error_begins_as_the_original_s(expression: str, remark: str) -> None:
    with pytest.raises(SqlError) as caught:
        compile_expression(expression)
    assert caught.value.remark.startswith(remark)


def test_chains_are_evaluated_however_long_they_are_or_refused() -> None:
    assert compile_expression(" OR ".join(["a = 1"] * 3000) + " OR a = 5")(PROPERTIES)
    assert compile_expression(" AND ".join(["a = 5"] * 3000))(PROPERTIES)
    for chain in ("a" + " IS NULL" * 3000, "a" + " = a" * 3000, "a" + " CONTAINS 'b'" * 3000, "a" + " IN ('b')" * 3000):
        with pytest.raises(SqlError):
            compile_expression(chain)


def test_an_expression_knows_the_properties_that_it_names() -> None:
    assert compile_expression("b = 'a' AND (c IN ('d') OR NOT B IS NULL) AND b > 1").names == ("B", "b", "c")


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


@pytest.mark.parametrize(
    "text", ["/**/" * 60 + "#", "/*" * 4000, "a = 5 " + "--x\n" * 4000 + "#", "'" * 4001, "(" * 4000]
)
def test_what_a_client_may_send_is_looked_at_once(text: str) -> None:
    with pytest.raises(SqlError):
        compile_expression(text)


@pytest.mark.parametrize(
    "value", ["9" * 30_000 + "x", "0x" + "f" * 30_000, "9" * 30_000, "." + "9" * 30_000 + "e" + "9" * 9]
)
def test_so_is_a_property(value: str) -> None:
    for text in ("a > 1", "a > 1.0", "a = 5L", "a BETWEEN 1 AND 2.0"):
        try:
            assert compile_expression(text)({"a": value}) in (True, False, None)
        except SqlError:
            continue
