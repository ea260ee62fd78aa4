"""``make test-matrix``: what it takes from the output of pytest."""

import pytest

from tools.matrix import last_line

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
