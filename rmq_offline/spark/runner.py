"""Runs a job's tasks on a Spark cluster, one Spark task each."""

import functools
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_formats.errors import OptionError, RmqError
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks.runner import Argument, Result, collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkRunner:
    """Runner that maps tasks as an RDD of one partition each; results are small and return to the driver."""

    def __init__(self, spark: "SparkSession") -> None:
        self._context = spark.sparkContext
        self.parallelism = self._context.defaultParallelism

    def map(
        self,
        function: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        on_done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Apply ``function`` to each argument; ``on_done`` is called when all are done."""
        if not arguments:
            return []
        return collect(self._context.parallelize(arguments, len(arguments)).map(function).collect(), on_done)

    def check_seen(self, option: str, path: str, location: str | None = None) -> None:
        """Check that the executors see a path that the driver sees. Raises OptionError about the path or a location."""
        if self._is_local():
            return
        faults = [fault for fault in self.map(functools.partial(_unseen, path), range(self.parallelism)) if fault]
        if faults:
            remedy = "give one on a mount that all machines share, or in an object store"
            raise OptionError(f"{option} {path if location is None else location}: {faults[0]}; {remedy}")

    def check_shared(self, option: str, directory: str) -> None:
        """Check that the executors see the driver's files in a directory, old or new. Raises OptionError."""
        if "://" in directory or self._is_local():
            return
        place = next(path for path in [Path(directory), *Path(directory).absolute().parents] if path.is_dir())
        probe = place / f".rmq-probe-{uuid.uuid4().hex}"
        try:
            probe.touch()
            self.check_seen(option, str(probe), directory)
        except OSError as error:
            raise OptionError(f"{option} {directory}: {error.strerror}") from error
        finally:
            probe.unlink(missing_ok=True)

    def _is_local(self) -> bool:
        return str(self._context.master).partition("[")[0] == "local"


def _unseen(path: str, _number: int) -> str | None:
    try:
        store = open_store(path)
        return None if store.storage.exists(store.root) else f"not seen on {socket.gethostname()}"
    except RmqError as error:
        return f"not seen on {socket.gethostname()} ({error})"
