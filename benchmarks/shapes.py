"""Measures rebuild and verification of stores of unusual shapes: many queues, many light queues, many IndexFiles.

``simulated`` has ten times as many of the first two.
"""

import resource
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Figure
from benchmarks.simulated_queues import encode_small_record
from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.layout import BLANK_BYTES, DEFAULT_DELAY_LEVELS
from rmq_offline.generate import generate_store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions

QUEUES: Final = 1_000_000  # a tenth of those that are simulated
LIGHT_QUEUES: Final = 100_000  # a tenth of 1,000,000
INDEX_FILES: Final = 10_000
LARGEST_BYTES: Final = 2 << 30
MOST_TASKS: Final = 1024  # of a batch: no task for each queue; each IndexFile has a task
_SIZES: Final = StoreSizes(
    consumequeue_file_bytes=400,
    index_slots=50,
    index_entries=1 << 22,
    delay_levels_ms=delay_levels_ms(DEFAULT_DELAY_LEVELS),
)
_TOPICS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Measured:
    """Time, peak memory and results of both jobs."""

    rebuild_s: float
    verify_s: float
    queues: int
    index_files: int
    findings: frozenset[str]  # codes, without information
    tasks: int  # of the largest batch
    driver_bytes: int
    task_bytes: int


class _Counting(ProcessRunner):
    """Counter of the tasks of the largest batch."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def map(self, function: Any, arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        self.most = max(self.most, len(arguments))
        return super().map(function, arguments, on_done)


def figures(work: Path) -> list[Figure]:
    """Measure each shape on a separate store."""
    shapes: dict[str, tuple[Callable[[str], None], StoreSizes]] = {
        f"{QUEUES:,} queues": (_many_queues, _SIZES),
        f"{LIGHT_QUEUES:,} light queues": (_light_queues, _SIZES),
        f"an Index of {INDEX_FILES:,} files": (_many_keys, replace(_SIZES, index_entries=101)),
    }
    return [_figure(name, str(work / "shape"), *shape) for name, shape in shapes.items()]


def _figure(name: str, store: str, make: Callable[[str], None], sizes: StoreSizes) -> Figure:
    make(store)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        measured = pool.submit(_measure, store, sizes).result()
    shutil.rmtree(store)
    value = (
        f"{measured.queues:,} queues, {measured.index_files:,} IndexFiles; rebuild {measured.rebuild_s:,.0f} s, verify "
        f"{measured.verify_s:,.0f} s; {measured.driver_bytes >> 20:,} MiB in the driver, "
        f"{measured.task_bytes >> 20:,} in a task; {measured.tasks:,} tasks in a wave"
    )
    is_bounded = max(measured.driver_bytes, measured.task_bytes) <= LARGEST_BYTES
    has_few_tasks = measured.tasks <= max(MOST_TASKS, 2 * measured.index_files)
    return Figure(name, value, "2 GiB, sound", is_bounded and has_few_tasks and not measured.findings)


def _measure(store: str, sizes: StoreSizes) -> _Measured:
    runner = _Counting()
    begin = time.perf_counter()
    rebuild_store(store, None, RebuildOptions(True, True, sizes), runner)
    middle = time.perf_counter()
    options = VerifyOptions(
        consumequeue_file_bytes=sizes.consumequeue_file_bytes,
        index_slots=sizes.index_slots,
        index_entries=sizes.index_entries,
        delay_levels_ms=sizes.delay_levels_ms,
    )
    report = verify_store(store, options, runner)
    end = time.perf_counter()
    faults = frozenset(kind.code for kind in report.counts if kind.severity != "info") - {"checkpoint.missing"}
    files = len(list(Path(paths.index_dir(store)).iterdir()))
    peaks = (resource.getrusage(who).ru_maxrss << 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return _Measured(middle - begin, end - middle, report.queues, files, faults, runner.most, *peaks)


def _many_queues(store: str) -> None:
    topics = [f"Topic{number}" for number in range(_TOPICS)]
    generate_store(
        store, messages=QUEUES, body_bytes=16, topics=topics, queues=QUEUES // _TOPICS, keys=False, tags=False
    )


def _many_keys(store: str) -> None:
    keys_each = 2  # UNIQ_KEY and KEYS
    messages = INDEX_FILES * 100 // keys_each
    generate_store(store, messages=messages, body_bytes=16, topics=["Orders"], queues=8, keys=True, tags=False)


def _light_queues(store: str) -> None:
    """Write a message for each light queue, which is also in the next light queue."""
    at, places = 0, [0] * LIGHT_QUEUES
    directory = Path(paths.commitlog_dir(store))
    directory.mkdir(parents=True)
    file_bytes = 1 << 30
    with (directory / paths.segment_name(0)).open("wb", buffering=1 << 20) as out:
        for number in range(LIGHT_QUEUES):
            numbers = number, (number + 1) % LIGHT_QUEUES
            properties = {
                "INNER_MULTI_DISPATCH": ",".join(f"%LMQ%device{queue_number}" for queue_number in numbers),
                "INNER_MULTI_QUEUE_OFFSET": ",".join(str(places[queue_number]) for queue_number in numbers),
            }
            for queue_number in numbers:
                places[queue_number] += 1
            record = encode_small_record("Devices", properties, number, at)
            out.write(record)
            at += len(record)
        assert at < file_bytes - BLANK_BYTES
        out.truncate(file_bytes)
