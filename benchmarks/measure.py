"""Measuring tools of the benchmarks: figures, timers, memory, page cache."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Attributes:
        value: the figure with its unit.
        peer: the peer's figure with its unit, from the same run; empty if there is none.
        ratio: ours by the peer's; None if there is no peer.
    """

    name: str
    value: str
    target: str
    is_met: bool
    peer: str = ""
    ratio: float | None = None


@contextmanager
def peak_worker_memory(result: list[int]) -> Iterator[None]:
    """Append the peak resident size, in bytes, of any Python process below this one meanwhile."""
    stop = threading.Event()
    peak = [0]

    def watch() -> None:
        me = psutil.Process()
        while not stop.wait(0.05):
            for process in me.children(recursive=True):
                try:
                    if "python" in process.name():
                        peak[0] = max(peak[0], process.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        result.append(peak[0])


def peak_bytes() -> int:
    """Return the most memory of this process; ``getrusage`` counts that of the process that started it, too."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def seconds(action: Callable[[], object]) -> float:
    """Return the seconds of an action."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def warm_page_cache(directory: Path) -> None:
    """Read files once, so that all who are measured find them in memory."""
    for path in sorted(directory.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def run(*command: str) -> str:
    """Run a command of the project; return its stdout."""
    return subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def run_rmq(*arguments: str) -> str:
    """Run the command line; return its stdout."""
    rmq = Path(sys.executable).parent / "rmq"
    return subprocess.run([str(rmq), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
