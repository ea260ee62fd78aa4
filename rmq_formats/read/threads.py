"""Executes the tasks of a plan by several threads, and yields their batches in log order.

The kernels, the CRCs and the reads hold no interpreter lock, so threads share the work as processes would.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from queue import Queue, SimpleQueue
from typing import Final, TypeAlias

import pyarrow as pa

from rmq_formats.read.plan import Task
from rmq_formats.read.query import ReadOptions
from rmq_formats.read.task import read_task

_BATCHES_AHEAD: Final = 4  # of one task, each of some 8 MiB at most; the next read waits for their taker
_TASKS_AHEAD: Final = 1  # beside those that threads work on

_Item: TypeAlias = pa.RecordBatch | BaseException | None


class _Output:
    """The batches of one task; None ends them, an exception too."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.items: Queue[_Item] = Queue(_BATCHES_AHEAD)

    def drain(self) -> None:
        while not self.items.empty():
            self.items.get_nowait()


def read_tasks(root: str, tasks: Sequence[Task], options: ReadOptions, threads: int) -> Iterator[pa.RecordBatch]:
    """Read the records of tasks, in log order. Closing the iterator stops the work.

    At most ``threads + 1`` tasks are begun and not taken, each with at most four batches of some 8 MiB.

    Args:
        threads: how many read; with one, or with one task, it is the caller's own.

    Raises:
        FormatError: in FAILFAST, at the first damage, behind all batches before it.
        StoreError: a file that cannot be read.
    """
    if threads > 1 and len(tasks) > 1:
        yield from _Reading(root, options).batches(tasks, min(threads, len(tasks)))
        return
    for task in tasks:
        yield from read_task(root, task, options)


class _Reading:
    """One read of tasks by threads of its own."""

    def __init__(self, root: str, options: ReadOptions) -> None:
        self._root = root
        self._options = options
        self._stopped = threading.Event()
        self._work: SimpleQueue[_Output | None] = SimpleQueue()

    def batches(self, tasks: Sequence[Task], threads: int) -> Iterator[pa.RecordBatch]:
        # Daemons: a reader that nobody closed must not hold up the interpreter's end.
        workers = [threading.Thread(target=self._run, name="rmq-read", daemon=True) for _ in range(threads)]
        outputs = map(_Output, tasks)
        begun: deque[_Output] = deque()
        for worker in workers:
            worker.start()
        try:
            for output in islice(outputs, threads + _TASKS_AHEAD):
                begun.append(output)
                self._work.put(output)
            while begun:
                while (item := begun[0].items.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
                begun.popleft()
                for output in islice(outputs, 1):
                    begun.append(output)
                    self._work.put(output)
        finally:
            self._stop(workers, begun)

    def _stop(self, workers: Sequence[threading.Thread], begun: Sequence[_Output]) -> None:
        """End the threads: each at its next batch, for which it then has room."""
        self._stopped.set()
        for _ in workers:
            self._work.put(None)
        for output in begun:
            output.drain()
        for worker in workers:
            if worker is not threading.current_thread():  # a collection of garbage may close this anywhere
                worker.join()

    def _run(self) -> None:
        while (output := self._work.get()) is not None:
            end: _Item = None
            try:
                for batch in read_task(self._root, output.task, self._options):
                    if self._stopped.is_set():
                        return
                    output.items.put(batch)
            except BaseException as error:  # the reader raises it
                end = error
            if self._stopped.is_set():
                return
            output.items.put(end)
