"""Measures what a driver needs to plan jobs on a simulated object store of a million segments."""

import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.measure import Figure
from benchmarks.simulated_store import SimulatedStore
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import Query
from rmq_formats.storage.store_files import open_store
from rmq_offline.rebuild.job import rebuild_steps
from rmq_offline.rebuild.options import options_from_arguments
from rmq_offline.rebuild.tasks import scan_split
from rmq_offline.tasks.job_steps import JobSteps
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_steps
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.phases.scan import check_split

SEGMENTS: Final = 1_000_000
LONGEST_S: Final = 300
LARGEST_BYTES: Final = 2 << 30


def _scan(uri: str) -> int:
    return len(plan_read(open_store(uri), Query()).tasks)


def _verify(uri: str) -> int:
    return _until_scan(verify_steps(uri, VerifyOptions(), os.cpu_count() or 1))


def _rebuild(uri: str) -> int:
    options = options_from_arguments("all", VerifyOptions(None, 6_000_000, 0, 5_000_000, 20_000_000, (1000,)), uri)
    with TemporaryDirectory() as out:
        return _until_scan(rebuild_steps(uri, out, options, os.cpu_count() or 1))


def _until_scan(steps: JobSteps[Any]) -> int:
    """Run a job's task batches up to the scan; return the scan's number of tasks."""
    runner = ProcessRunner()
    wave = next(steps)
    while getattr(wave.function, "func", None) not in {check_split, scan_split}:
        wave = steps.send(runner.map(wave.function, wave.arguments))
    steps.close()
    return len(wave.arguments)


def _measure(plan: Callable[[str], int], segments: int) -> tuple[float, int, int]:
    """Measure seconds and peak memory of the planning process; count the tasks."""
    with SimulatedStore(segments).at_uri() as uri:
        begin = time.perf_counter()
        tasks = plan(uri)
        return time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, tasks


def figures(segments: int = SEGMENTS) -> list[Figure]:
    """Measure each plan in a separate process."""
    rows = []
    for name, plan in {"scan": _scan, "verify": _verify, "rebuild": _rebuild}.items():
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            seconds, peak_bytes, tasks = pool.submit(_measure, plan, segments).result()
        value = f"{seconds:,.0f} s, {peak_bytes / (1 << 30):.2f} GiB, {tasks:,} tasks"
        is_met = seconds <= LONGEST_S and peak_bytes <= LARGEST_BYTES
        rows.append(Figure(f"plan of a {name} of {segments:,} segments", value, "300 s, 2 GiB", is_met))
    return rows
