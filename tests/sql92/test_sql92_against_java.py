"""The original's evaluator and ours, asked the same: all vectors, and thousands of expressions that chance has made."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from rmq_formats.sql92 import SqlError, compile_expression
from tests.interop import peer
from tests.sql92.test_sql92 import (
    FAILING,
    FALSE,
    MORE_FALSE,
    MORE_NO_EXPRESSION,
    MORE_PROPERTIES,
    MORE_TRUE,
    NO_EXPRESSION,
    NULL,
    TRUE,
    cases,
)

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("broker_against_java")]
SOURCE = Path(__file__).parent / "Evaluate.java"
PROPERTIES = {**MORE_PROPERTIES, "q": "it's", "i": "-Infinity", "w": "+12", "l": "-9223372036854775808"}
WORDS = [
    *PROPERTIES, "missing", "_$1", "'abc'", "'it''s'", "'5'", "''", "0", "1", "5", "12", "5L", "2147483648", "0.5",
    "3.14", "1e3", ".5", "9223372036854775807", "9223372036854775808", "TRUE", "false", "NULL", "(", ")", "(", ")",
    "-", "+", "=", "<>", ">", ">=", "<", "<=", "IS", "NOT", "IN", "BETWEEN", "AND", "OR", "CONTAINS", "startswith",
    "EndsWith", ",", "--", "/* c */", "/*", "-- c\\n", "#", "012", "1.e", "IS NULL", "IS NOT NULL",
    "IN ('abc', 'it''s')", "BETWEEN 1 AND 9", "NOT BETWEEN -9 AND 1", "NOT IN ('5')", "CONTAINS 'b'", "AND a = 5",
    "OR b = 'abc'", "> 3", "= '5'",
]  # fmt: skip
CHANCES = 3000


def made(seed: int) -> list[str]:
    """Expressions: words in a row, most of which are none, and pieces that fit together."""
    chance = random.Random(seed)
    operands = [word for word in WORDS[: WORDS.index("(")] if word != "''"]
    signs = ["=", "<>", ">", ">=", "<", "<="]

    def piece(depth: int) -> str:
        one, other = chance.choice(operands), chance.choice(operands)
        kind = chance.randrange(9)
        if depth and kind < 3:
            return f"({piece(depth - 1)}) {chance.choice(['AND', 'OR', '='])} {piece(depth - 1)}"
        if kind == 3:
            return f"NOT {piece(depth - 1)}" if depth else one
        if kind == 4:
            return f"{one} {chance.choice(['', 'NOT '])}BETWEEN {other} AND {chance.choice(['-', ''])}{one}"
        if kind == 5:
            return f"{one} {chance.choice(['', 'NOT '])}{chance.choice(['CONTAINS', 'STARTSWITH', 'ENDSWITH'])} 'b'"
        return f"{chance.choice(['', '', '-', '+ '])}{one} {chance.choice(signs)} {chance.choice(['', '', '-'])}{other}"

    rows = [" ".join(chance.choices(WORDS, k=chance.randint(1, 9))) for _ in range(CHANCES)]
    return rows + [piece(chance.randrange(4)) for _ in range(CHANCES)]


def ours(text: str) -> str:
    try:
        expression = compile_expression(text.replace("\\n", "\n"))
    except SqlError as error:
        return "refused " + error.remark
    try:
        value = expression.evaluate(PROPERTIES)
    except SqlError:
        return "error"
    return "null" if value is None else str(value).lower()


def test_the_original_says_the_same() -> None:
    peer.build()
    vectors = [TRUE, FALSE, NULL, FAILING, NO_EXPRESSION, MORE_TRUE, MORE_FALSE, MORE_NO_EXPRESSION]
    texts = [one for vector in vectors for one in cases(vector)] + made(7)
    jars = Path(os.environ.get("PEER_HOME") or Path.home() / ".cache" / "rocketmq-peer") / "lib/*"
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", str(jars), str(SOURCE), *map("=".join, PROPERTIES.items())],
        input="\n".join(texts) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    theirs = done.stdout.split("\n")[:-1]
    assert len(theirs) == len(texts)
    other = [
        (text, their, our)
        for text, their, our in zip(texts, theirs, map(ours, texts), strict=True)
        if their.split(" ")[0] != our.split(" ")[0]
    ]
    assert not other, other[:20]
    assert {their.split(" ")[0] for their in theirs} == {"true", "false", "null", "error", "refused"}
    begins = ("refused java.lang.RuntimeException: Value", "refused java.lang.RuntimeException: '")
    told = [(their, ours(text)) for text, their in zip(texts, theirs, strict=True) if their.startswith(begins)]
    assert told
    assert [their for their, _ in told] == [our for _, our in told]
