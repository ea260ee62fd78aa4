"""Jobs as steps that ask for waves of tasks, so that those of several stores run as one wave.

A job is a generator: it yields a ``Wave`` and is sent the results of its tasks, or the error of one. Jobs that run
together have common waves, made of the tasks that all of them wait for. A job that fails ends, the others go on.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TypeVar

from rmq_formats.errors import RmqError
from rmq_formats.tasks.runner import Runner

_MOST_AT_ONCE: Final = 16  # stores that are looked at together: they wait for disks and networks

Given = TypeVar("Given")
Found = TypeVar("Found")
Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class Wave:
    """Tasks that a job waits for: a function and its arguments, as ``Runner.map`` takes them."""

    function: Callable[[Any], Any]
    arguments: Sequence[Any]
    on_done: Callable[[Any], None] | None = None


Steps = Generator[Wave, list[Any], Report]


def in_threads(function: Callable[[Given], Found], given: Sequence[Given]) -> list[Found]:
    """Apply a function to each of some stores, which wait for disks and networks more than for a processor."""
    if len(given) <= 1:
        return [function(one) for one in given]
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(given))) as pool:
        return list(pool.map(function, given))


def run_alone(steps: Steps[Report], runner: Runner) -> Report:
    """Run one job; what its tasks raise is raised in it."""
    try:
        wave = next(steps)
        while True:
            try:
                results = runner.map(wave.function, wave.arguments, wave.on_done)
            except BaseException as error:  # the job cleans up, and raises it
                wave = steps.throw(error)
            else:
                wave = steps.send(results)
    except StopIteration as stop:
        report: Report = stop.value
        return report


def run_together(jobs: Sequence[Steps[Report]], runner: Runner) -> list[Report | Exception]:
    """Run some jobs in common waves of tasks.

    Returns:
        For each job its report, or the RmqError or OSError that has ended it.
    """
    running = [_Running(steps) for steps in jobs]
    try:
        while waiting := [job for job in running if not job.has_ended]:
            in_threads(_Running.advance, waiting)
            tasks = [job.tasks(number) for number, job in enumerate(running)]
            mixed = [task for turn in zip_longest(*tasks) for task in turn if task is not None]

            if mixed:
                runner.map(_attempt, mixed, lambda result: running[result.job].take(result))
    except BaseException:
        for job in running:
            job.steps.close()
        raise
    return [job.outcome for job in running]


@dataclass(frozen=True, slots=True)
class _Task:
    job: int
    number: int
    function: Callable[[Any], Any]
    argument: Any


@dataclass(frozen=True, slots=True)
class _Result:
    job: int
    number: int
    value: Any
    error: Exception | None = None


def _attempt(task: _Task) -> _Result:
    """Run a task; what is wrong with its store is a result, so that the others' tasks go on."""
    try:
        return _Result(task.job, task.number, task.function(task.argument))
    except (RmqError, OSError) as error:
        return _Result(task.job, task.number, None, error)


class _Running:
    """A job that runs with others: the wave that it waits for, or how it has ended."""

    def __init__(self, steps: Steps[Any]) -> None:
        self.steps = steps
        self.has_ended = False
        self.outcome: Any = None
        self._wave: Wave | None = None
        self._results: list[Any] = []
        self._error: Exception | None = None

    def advance(self) -> None:
        """Go on to the next wave, with the results of the last one."""
        try:
            if self._wave is None:
                self._wave = next(self.steps)
            elif self._error is not None:
                self._wave = self.steps.throw(self._error)
            else:
                self._wave = self.steps.send(self._results)
        except StopIteration as stop:
            self.has_ended, self.outcome = True, stop.value
        except (RmqError, OSError) as error:
            self.has_ended, self.outcome = True, error
        self._error = None
        self._results = [] if self.has_ended or self._wave is None else [None] * len(self._wave.arguments)

    def tasks(self, job: int) -> list[_Task]:
        """Return the tasks that it waits for, as those of a numbered job."""
        if self.has_ended or self._wave is None:
            return []
        function = self._wave.function
        return [_Task(job, number, function, argument) for number, argument in enumerate(self._wave.arguments)]

    def take(self, result: _Result) -> None:
        """Take the result of one of its tasks."""
        if result.error is not None:
            self._error = self._error or result.error
            return
        self._results[result.number] = result.value
        if self._wave is not None and self._wave.on_done:
            self._wave.on_done(result.value)
