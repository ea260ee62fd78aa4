"""A program that ends without stopping its session leaves nothing behind, and nothing on a terminal."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = [pytest.mark.spark]
PROGRAM = """
import sys
from rmq_formats.spark import session
for _ in range(2):  # the second is the first
    spark = session(delta=False, spark_python_unix_domain_socket_dir=sys.argv[2])
print(spark.read.format("rmq_commitlog").load(sys.argv[1]).count())
"""


@pytest.mark.long
def test_no_socket_stays_and_no_worker_tells_how_it_ended(golden: Callable[[str], Path]) -> None:
    store = golden("crash")
    with TemporaryDirectory() as sockets:  # a test's own has too long a path for a socket
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(store / "store"), sockets],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        left = list(Path(sockets).iterdir())
    lines = (store / "expected" / "messages.jsonl").read_text().splitlines()
    assert (done.returncode, done.stdout) == (0, f"{len(lines)}\n"), done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert left == []
