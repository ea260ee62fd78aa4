"""``make test-matrix``: what it takes from the output of pytest."""

import pytest

from tools.matrix import last_line
from tools.matrix_plugin import reason

OPEN_SOCKETS = (
    "sys:1: ResourceWarning: unclosed <socket.socket fd=21, family=1, type=5, proto=0>\n"
    "/usr/lib/python3.11/subprocess.py:1127: ResourceWarning: subprocess 26792 is still running\n"
)


@pytest.mark.parametrize("behind", ["", OPEN_SOCKETS])
@pytest.mark.parametrize(
    "told",
    [
        "8 passed, 35 warnings in 318.24s (0:05:18)",
        "1 failed, 7 passed, 2 skipped, 1 error in 12.01s",
        "no tests ran in 0.03s",
    ],
)
def test_counts_are_found_whatever_python_says_behind_them(told: str, behind: str) -> None:
    assert last_line(f"........  [100%]\n=== {told} ===\n{behind}") == told


def test_a_process_that_died_is_told_by_the_last_that_it_said() -> None:
    assert last_line("..\nFatal Python error: Segmentation fault\n") == "Fatal Python error: Segmentation fault"
    assert last_line("") == "said nothing"


MISSING = "java.lang.NoSuchMethodError: 'void org.apache.spark.sql.execution.LogicalRDD.<init>(scala.Option)'"
OF_DELTA = "E                   \tat org.apache.spark.sql.delta.util.StateCache$CachedDS.getDF(StateCache.scala:110)"
OF_SPARK = "E                   \tat org.apache.spark.sql.execution.SparkPlan.execute(SparkPlan.scala:195)"


@pytest.mark.parametrize(
    ("said", "spark", "expected"),
    [
        ("rmq: a stream needs Spark 4.2 or later; this is 4.0.5", "4.0.5", "needs Spark 4.2 or later; this is 4.0.5"),
        (f"E   : {MISSING}\n{OF_DELTA}", "4.3.0", MISSING),
        (f'E     Actual message: "called.\\n: {MISSING}\\n\\t{OF_DELTA[21:]}', "4.3.0", MISSING),
        (f'E     Actual message: "called.\\n: {MISSING}\\n\\t{OF_SPARK[21:]}', "4.3.0", None),
        (f"E   : {MISSING}\n{OF_DELTA}", "4.1.4", None),  # Delta was built for this one
        (f"E   : {MISSING}\n{OF_SPARK}", "4.3.0", None),
        ("E   : java.lang.OutOfMemoryError: Java heap space\n" + OF_DELTA, "4.3.0", None),
        ("E   AssertionError: assert 1 == 2", "4.3.0", None),
    ],
)
def test_what_needs_another_spark_is_told_from_what_fails(said: str, spark: str, expected: str | None) -> None:
    assert reason(said, spark) == expected
