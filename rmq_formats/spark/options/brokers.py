"""Stores of a Spark read, and the columns with the names of their brokers; imports the kernels."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TypeVar

import pyarrow as pa

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER, Mode
from rmq_formats.errors import OptionError, StoreNotFoundError
from rmq_formats.read.queue_choice import refuse_absent_queues, warn_of_absent
from rmq_formats.read.stores import BrokerStore, find_stores, plan_stores
from rmq_formats.spark.options.read import SourceOptions

_Plan = TypeVar("_Plan")
_Task = TypeVar("_Task")


@dataclass(frozen=True, slots=True)
class StorePlan(Generic[_Plan]):
    """Store of a read with the plan, or with the error of a missing store."""

    store: BrokerStore
    plan: _Plan | None
    missing: str | None = None


def plan_store_reads(
    options: SourceOptions, stores: Sequence[BrokerStore], plan: Callable[[BrokerStore], _Plan]
) -> list[StorePlan[_Plan]]:
    """Plan the read of all stores.

    Raises:
        StoreNotFoundError: a store is missing, and without ``missingStores=row``.
        RmqError: a store cannot be read.
    """
    plans: list[StorePlan[_Plan]] = []
    for store, store_plan in zip(stores, plan_stores(stores, plan), strict=True):
        if not isinstance(store_plan, StoreNotFoundError):
            plans.append(StorePlan(store, store_plan))
        elif options.missing_are_rows and options.read.mode is not Mode.FAILFAST:
            plans.append(StorePlan(store, None, str(store_plan)))
        else:
            more = "; option missingStores=row makes a row of it" if options.stores is not None else ""
            raise StoreNotFoundError(f"{store_plan}{more}") from store_plan
    return plans


def stores_of(options: SourceOptions) -> tuple[BrokerStore, ...]:
    """Find the stores that the options name. Raises OptionError, StoreError."""
    if not options.names_brokers:
        return (BrokerStore(options.path),)
    stores = find_stores(options.stores or (options.path,))
    unknown = sorted(options.by_broker.keys() - {store.broker for store in stores})
    if unknown:
        brokers = ", ".join(str(store.broker) for store in stores)
        raise OptionError(f"queues of broker {unknown[0]}, of which no store is read; there are {brokers}")
    return stores


def check_bounded_queues(options: SourceOptions, stores: Sequence[BrokerStore]) -> None:
    """Refuse offsets of queues that no store has, or warn with failOnDataLoss=false. Raises OptionError.

    Selected queues and topics without offsets that no store has are a warning: messages may come.
    """
    queues = {store.path: options.read_of(store.broker).query.bounds.keys() for store in stores}
    refuse_absent_queues(queues, fails=options.fail_on_data_loss)
    warn_of_absent({store.path: options.read_of(store.broker).query for store in stores})


def interleave_tasks(tasks: Iterable[Iterable[_Task]]) -> list[_Task]:
    """Interleave the tasks of several stores, so that all workers do not read from the same disk."""
    return [task for turn in zip_longest(*tasks) for task in turn if task is not None]


def store_columns(columns: tuple[str, ...], instead: str) -> tuple[str, ...]:
    """Return the columns of a store's files, or the column ``instead`` to count rows."""
    return tuple(name for name in columns if name not in {CLUSTER, BROKER_NAME}) or (instead,)


def with_broker(
    batches: Iterable[pa.RecordBatch], store: BrokerStore, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Add the requested columns with the names of a store's cluster and broker."""
    if not {CLUSTER, BROKER_NAME} & set(columns):
        yield from batches
        return
    names = {CLUSTER: store.cluster, BROKER_NAME: store.broker}
    for batch in batches:
        arrays = [
            pa.repeat(pa.scalar(names[name], pa.string()), batch.num_rows) if name in names else batch.column(name)
            for name in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def missing_batch(reason: str, columns: tuple[str, ...], mode: Mode, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Build the row of a missing store with a reason as ``record_error``; no row in DROPMALFORMED."""
    if mode is not Mode.DROPMALFORMED:
        row = dict.fromkeys(columns) | {"record_error": reason}
        yield pa.RecordBatch.from_pylist([row], schema=pa.schema([schema.field(name) for name in columns]))
