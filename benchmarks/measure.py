"""Measuring tools of the benchmarks: figures, timers, memory, page cache."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Figure:
    """Row of the table, with our figure and a peer's figure of the same run."""

    name: str
    value: str
    target: str
    is_met: bool
    peer: str = ""
    ratio: float | None = None


def rate_figure(name: str, per_second: float, target: int) -> Figure:
    return Figure(name, f"{per_second:,.0f}/s", f"{target:,}/s", per_second >= target)


def throughput_figure(name: str, rate: float, peer_rate: float, least: float, target: str, peer: str = "") -> Figure:
    """Make the figure of bytes a second that have to be ``least`` times the peer's."""
    ratio = rate / peer_rate
    return Figure(name, f"{rate / 1e6:,.0f} MB/s", target, ratio >= least, f"{peer_rate / 1e6:,.0f} MB/s{peer}", ratio)


@contextmanager
def peak_worker_memory(result: list[int]) -> Iterator[None]:
    """Append the peak resident size, in bytes, of any Python process below this process."""
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
    """Return the peak memory of this process; ``getrusage`` includes the parent's memory before the start."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def warm_page_cache(directory: Path) -> None:
    """Read files once, so that no measurement reads from the disk."""
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


def last_line_json(output: str) -> Any:
    return json.loads(output.splitlines()[-1])
