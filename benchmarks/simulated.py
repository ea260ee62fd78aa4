"""Measures rebuild and verification of simulated stores of ten million queues, and of a million light queues.

A driver plans, the log is scanned, and a single task over queues is run. Tasks run in other processes than the driver,
as in executors. Processor time counts, which other work on the machine hardly changes.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.measure import Figure, peak_bytes
from benchmarks.simulated_queues import ManyQueues, SimulatedLightQueues, SimulatedQueues
from benchmarks.simulated_store import SimulatedTarget
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.layout import DEFAULT_DELAY_LEVELS
from rmq_offline.rebuild.job import rebuild_steps
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.tasks import scan_split
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch
from rmq_offline.tasks.object_work_area import ObjectArea
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.job import verify_steps
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.phases.queues import PartResult
from rmq_offline.verify.phases.scan import check_split

LARGEST_BYTES: Final = 2 << 30
LONGEST_S: Final = 300
MOST_TASKS: Final = 1024  # of a wave: no task for each queue
_PROCESSORS: Final = 2
_SCANS: Final = (check_split, scan_split)
_SERVED: Final = ExitStack()  # in a process that has tasks
_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Task:
    """Result, processor seconds, peak memory of the process, requests, and most open files of a task."""

    result: Any
    seconds: float
    own_bytes: int
    requests: int
    open_files: int


@dataclass(frozen=True, slots=True)
class _Job:
    """Processor seconds, peak memory and requests of a job's driver, and the tasks."""

    plan_s: float  # until the log's scan
    after_scan_s: float  # until the tasks over queues
    driver_bytes: int
    requests: int
    lists: list[_Task]  # that list queues, without results
    scans: list[_Task]  # without results
    tasks: int  # over queues
    task: _Task  # a single one of these


def figures(work: Path, queues: int, light_queues: int) -> list[Figure]:
    """Measure both jobs on both stores; ``work`` is the directory of the spills."""
    stores: dict[str, Callable[[], ManyQueues]] = {
        f"{light_queues:,} simulated light queues": partial(SimulatedLightQueues, messages=light_queues),
        f"{queues:,} simulated queues": partial(SimulatedQueues, messages=queues),
    }
    kinds = {"verify": _verify, "rebuild": _rebuild}
    rows = []
    for name, make in stores.items():
        for job, steps in kinds.items():
            rows.append(_figure(f"{name}, {job}", make, steps, work))
            print(f"{rows[-1].name}: {rows[-1].value}", file=sys.stderr, flush=True)  # each takes minutes
    return [*rows, _publication_figure(queues)]


def _figure(name: str, make: Callable[[], ManyQueues], job: Callable[..., JobSteps[Any]], work: Path) -> Figure:
    with ProcessPoolExecutor(1, _SPAWN) as pool:
        measured = pool.submit(_measure, make, job, str(work)).result()
    scans, task = measured.scans, measured.task
    value = (
        f"driver {measured.plan_s:,.0f} s to plan and {measured.after_scan_s:,.0f} s after the scan, "
        f"{measured.driver_bytes >> 20:,} MiB, {measured.requests:,} requests; {_most('lists', measured.lists)}"
        f"{_most('scan', scans)}one of {measured.tasks:,} tasks over queues: {task.result.queue_count:,} queues, "
        f"{task.seconds:,.1f} s, {task.own_bytes >> 20:,} MiB, {task.requests:,} requests, {task.open_files} open files"
    )
    largest = max(measured.driver_bytes, *(each.own_bytes for each in (*measured.lists, *scans, task)))
    is_bounded = (
        largest <= LARGEST_BYTES
        and measured.plan_s + measured.after_scan_s <= LONGEST_S
        and measured.tasks <= MOST_TASKS
    )
    return Figure(name, value, "driver 300 s, 2 GiB, sound", is_bounded and not _faults(task.result))


def _most(name: str, tasks: list[_Task]) -> str:
    if not tasks:
        return ""
    longest, largest = max(task.seconds for task in tasks), max(task.own_bytes for task in tasks)
    return f"{name} {len(tasks)} tasks of {longest:,.1f} s and {largest >> 20:,} MiB at most; "


def _faults(result: Any) -> set[str]:
    if isinstance(result, PartResult):
        return {kind.code for kind in result.findings.counts}
    return set(result.finding_counts)


def _verify(uri: str, area: str, sizes: StoreSizes) -> JobSteps[Any]:
    options = VerifyOptions(
        consumequeue_file_bytes=sizes.consumequeue_file_bytes, delay_levels_ms=sizes.delay_levels_ms
    )
    return verify_steps(uri, options, _PROCESSORS, work=area)


def _rebuild(uri: str, area: str, sizes: StoreSizes) -> JobSteps[Any]:
    return rebuild_steps(uri, area, RebuildOptions(True, False, sizes), _PROCESSORS)


def _measure(make: Callable[[], ManyQueues], job: Callable[..., JobSteps[Any]], work: str) -> _Job:
    store = make()
    sizes = StoreSizes(
        consumequeue_file_bytes=store.queue_file_bytes, delay_levels_ms=delay_levels_ms(DEFAULT_DELAY_LEVELS)
    )
    lists: list[_Task] = []
    scans: list[_Task] = []
    with store.at_uri() as uri, TemporaryDirectory(dir=work) as area:
        begin = time.process_time()
        steps = job(uri, area, sizes)
        wave = next(steps)
        plan_s = time.process_time() - begin
        while not scans:  # the driver lists queues before the scan, and gets the scan's results
            is_scan = getattr(wave.function, "func", None) in _SCANS
            tasks = _run(make, wave)
            costs = [replace(each, result=None) for each in tasks]
            begin = time.process_time()
            wave = steps.send([each.result for each in tasks])
            del tasks
            spent_s = time.process_time() - begin
            if is_scan:
                scans, after_scan_s = costs, spent_s
            else:
                lists, plan_s = costs, plan_s + spent_s
        driver_bytes, requests = peak_bytes(), store.requests.count
        (task,) = _run(make, TaskBatch(wave.function, wave.arguments[:1]))
        steps.close()
    return _Job(plan_s, after_scan_s, driver_bytes, requests, lists, scans, len(wave.arguments), task)


def _publication_figure(queues: int) -> Figure:
    with ProcessPoolExecutor(1, _SPAWN) as pool:
        tasks, seconds, driver_bytes, manifest_bytes = pool.submit(_publish, queues).result()
    with ProcessPoolExecutor(1, _SPAWN) as pool:
        task = pool.submit(_run_copies, queues).result()
    value = (
        f"driver {seconds:,.0f} s, {driver_bytes >> 20:,} MiB, a manifest of {manifest_bytes >> 20:,} MiB; one of "
        f"{tasks:,} tasks: {task.result:,} copies, {task.seconds:,.1f} s, {task.own_bytes >> 20:,} MiB"
    )
    is_bounded = max(driver_bytes, task.own_bytes) <= LARGEST_BYTES and seconds <= LONGEST_S
    return Figure(f"publication of {queues:,} simulated queues", value, "driver 300 s, 2 GiB", is_bounded)


def _publish(queues: int) -> tuple[int, float, int, int]:
    """Publish without copies: tasks, processor seconds, peak memory, and bytes of the manifest."""
    target = SimulatedTarget(queues=queues)
    with target.at_uri() as uri:
        begin = time.process_time()
        steps = ObjectArea(uri).publish(["consumequeue"])
        wave = next(steps)
        with suppress(StopIteration):
            steps.send([None] * len(wave.arguments))
        return len(wave.arguments), time.process_time() - begin, peak_bytes(), target.manifest_bytes


def _run_copies(queues: int) -> _Task:
    target = SimulatedTarget(queues=queues)
    with target.at_uri() as uri:
        begin = time.process_time()
        wave = next(ObjectArea(uri).publish(["consumequeue"]))
        wave.function(wave.arguments[0])
        seconds = time.process_time() - begin
    return _Task(target.copies, seconds, peak_bytes(), target.requests.count, 0)


def _run(make: Callable[[], ManyQueues], wave: TaskBatch) -> list[_Task]:
    with ProcessPoolExecutor(_PROCESSORS, _SPAWN, _serve, (make,)) as pool:
        return list(pool.map(partial(_run_task, make, wave.function), wave.arguments))


def _serve(make: Callable[[], ManyQueues]) -> None:
    """Serve a store in a process of tasks, so that a task with its storage can be unpickled."""
    _SERVED.enter_context(make().at_uri())


def _run_task(make: Callable[[], ManyQueues], function: Callable[[Any], Any], argument: Any) -> _Task:
    """Run a task in a process that has no store yet."""
    store = make()
    with store.at_uri():
        begin = time.process_time()
        result = function(argument)
        seconds = time.process_time() - begin
    return _Task(result, seconds, peak_bytes(), store.requests.count, store.most_open_files)
