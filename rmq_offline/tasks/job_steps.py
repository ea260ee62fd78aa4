"""Jobs as generators of task batches, so that the tasks of several stores run as one batch.

A job is a generator: it yields a ``TaskBatch`` and is sent the results of its tasks, or the error of one. Jobs that run
together have common batches of the tasks that all of these jobs wait for. A job that fails ends, the others go on.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from rmq_formats.errors import RmqError
from rmq_formats.read.stores import in_threads
from rmq_offline.tasks.runner import Runner

Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Arguments of the ``Runner.map`` that a job waits for."""

    function: Callable[[Any], Any]
    arguments: Sequence[Any]
    on_done: Callable[[Any], None] | None = None


JobSteps = Generator[TaskBatch, list[Any], Report]


def run_alone(steps: JobSteps[Report], runner: Runner) -> Report:
    """Run one job; an exception of a task is raised inside the job."""
    try:
        batch = next(steps)
        while True:
            try:
                results = runner.map(batch.function, batch.arguments, batch.on_done)
            except BaseException as error:  # the job cleans up, and raises it
                batch = steps.throw(error)
            else:
                batch = steps.send(results)
    except StopIteration as stop:
        report: Report = stop.value
        return report


def run_together(jobs: Sequence[JobSteps[Report]], runner: Runner) -> list[Report | Exception]:
    """Run jobs in common batches of tasks; return the report, or the RmqError or OSError, of each job."""
    running = [_Running(steps) for steps in jobs]
    try:
        while waiting := [job for job in running if not job.has_ended]:
            in_threads(_Running.advance, waiting)
            tasks = [job.tasks(number) for number, job in enumerate(running)]
            mixed_tasks = [task for next_tasks in zip_longest(*tasks) for task in next_tasks if task is not None]

            if mixed_tasks:
                runner.map(_attempt, mixed_tasks, lambda result: running[result.job].add_result(result))
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
    """Run a task; return an error of its store as the result, so that the tasks of other stores go on."""
    try:
        return _Result(task.job, task.number, task.function(task.argument))
    except (RmqError, OSError) as error:
        return _Result(task.job, task.number, None, error)


class _Running:
    """Job that runs with others: the task batch that the job waits for, or the job's outcome."""

    def __init__(self, steps: JobSteps[Any]) -> None:
        self.steps = steps
        self.has_ended = False
        self.outcome: Any = None
        self._batch = TaskBatch(_attempt, ())  # no tasks before the first step
        self._results: Any = None  # a generator's first ``send`` must be of None
        self._error: Exception | None = None

    def advance(self) -> None:
        """Advance to the next task batch, with the results of the last one."""
        try:
            if self._error is not None:
                self._batch = self.steps.throw(self._error)
            else:
                self._batch = self.steps.send(self._results)
        except StopIteration as stop:
            self.has_ended, self.outcome = True, stop.value
        except (RmqError, OSError) as error:
            self.has_ended, self.outcome = True, error
        self._error = None
        self._results = [None] * len(self._batch.arguments)

    def tasks(self, job: int) -> list[_Task]:
        if self.has_ended:
            return []
        function = self._batch.function
        return [_Task(job, number, function, argument) for number, argument in enumerate(self._batch.arguments)]

    def add_result(self, result: _Result) -> None:
        if result.error is not None:
            self._error = self._error or result.error
            return
        self._results[result.number] = result.value
        if self._batch.on_done:
            self._batch.on_done(result.value)
