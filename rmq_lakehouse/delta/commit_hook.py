"""Commit hook: runs a context manager around the commits that Delta makes itself.

These are commits of CREATE, ALTER, MERGE, DELETE, OPTIMIZE and VACUUM. Delta's only hook is the observer of
transactions that its own tests use.

Source: ``OptimisticTransactionImpl#commitImpl``, ``TransactionExecutionObserver`` of Delta 4.4.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.files import set_transaction
from rmq_lakehouse.java import java_class, scala_object

CommitGuard = Callable[[], AbstractContextManager[None]]
"""Makes a context manager: entered after a transaction has written its files, left after its commit or its failure."""


class TableReplacedError(Exception):
    """The content of the table was replaced after the export had read it."""


@contextmanager
def commit_hook(
    spark: SparkSession,
    commit_guard: CommitGuard,
    versions: Mapping[str, int] | None = None,
    check_start: Callable[[int], None] | None = None,
) -> Iterator[None]:
    """Run ``commit_guard`` around each commit that Delta makes in this thread.

    Args:
        commit_guard: context of a commit; a StoreError of it prevents the commit, and is raised here.
        versions: transaction versions that the first commit sets in addition to its own, by application id.
        check_start: called with the table version that a transaction reads; a TableReplacedError of it ends the
            transaction, and is raised here.
    """
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call] # pyspark's own
    observers = scala_object(jvm, "org.apache.spark.sql.delta.TransactionExecutionObserver")
    observer = _Observer(jvm, commit_guard, dict(versions or {}), check_start)
    before = observers.getObserver()
    observers.setObserver(observer)
    try:
        yield
    except (PySparkException, Py4JJavaError):
        if observer.error is not None:
            raise observer.error from None
        raise
    finally:
        observers.setObserver(before)
        observer.leave()


class _Observer:
    """Observer of transactions, as a Java object."""

    def __init__(
        self, jvm: Any, commit_guard: CommitGuard, versions: dict[str, int], check_start: Callable[[int], None] | None
    ) -> None:
        self.error: StoreError | TableReplacedError | None = None
        self._jvm, self._commit_guard, self._versions = jvm, commit_guard, versions
        self._check_start = check_start
        self._entered = ExitStack()

    def leave(self) -> None:
        self._entered.close()

    def startingTransaction(self, begin: Any) -> Any:  # noqa: N802 # Delta's names
        transaction = begin.apply()
        if self._check_start is not None:
            try:
                self._check_start(int(transaction.readVersion()))
            except TableReplacedError as error:
                self.error = error
                raise
        return transaction

    def preparingCommit(self, prepare: Any) -> Any:  # noqa: N802
        actions = prepare.apply()
        while self._versions:
            actions = actions.prepended(set_transaction(self._jvm, *self._versions.popitem()))
        return actions

    def beginDoCommit(self) -> None:  # noqa: N802
        self.leave()
        try:
            self._entered.enter_context(self._commit_guard())
        except StoreError as error:
            self.error = error
            raise

    def beginBackfill(self) -> None:  # noqa: N802
        pass

    beginPostCommit = transactionCommitted = transactionAborted = leave  # noqa: N815

    def createChild(self) -> "_Observer":  # noqa: N802
        return self

    def nextObserver(self) -> Any:  # noqa: N802
        return java_class(self._jvm, "scala.Option").empty()

    class Java:
        implements = ("org.apache.spark.sql.delta.TransactionExecutionObserver",)
