"""Selection of a store's messages for an export, and its transaction identifiers in Delta tables."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

APP_PREFIX = "rmq-export:"
"""Of all transaction identifiers of exports."""


@dataclass(frozen=True, slots=True)
class ExcludedTopics:
    """Topics that are not exported, such as system topics, by names and by a prefix of names."""

    names: tuple[str, ...]
    prefix: str

    def is_included(self) -> "Column":
        """Return the condition that a row is exported; a damaged range, which has no topic, is exported."""
        from pyspark.sql import functions as F  # noqa: PLC0415 # a second to load

        topic = F.col("topic")
        return topic.isNull() | ~(topic.isin(*self.names) | topic.startswith(self.prefix))

    def excludes(self, topic: str) -> bool:
        return topic in self.names or topic.startswith(self.prefix)

    def included_mask(self, topics: pa.Array) -> pa.Array:
        """Return the same condition for an Arrow column of topics."""
        excluded_topics = pc.or_(
            pc.is_in(topics, pa.array(self.names, pa.string())), pc.starts_with(topics, self.prefix)
        )
        return pc.or_(pc.is_null(topics), pc.fill_null(pc.invert(excluded_topics), True))


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """Broker in a table of several brokers; ``table_id`` identifies their clusters in the table."""

    cluster: str
    name: str
    table_id: str

    @property
    def id(self) -> str:
        """Identifier of the broker in application ids: names may contain any character."""
        return f"{quote(self.cluster, safe='')}/{quote(self.name, safe='')}"

    def to_dict(self) -> dict[str, str]:
        """Convert to the members of the JSON report that name the broker."""
        return {"cluster": self.cluster, "broker_name": self.name}


def exported_brokers(app_ids: Iterable[str]) -> set[tuple[str, str]]:
    """Return cluster and name of the brokers that have application ids in a table."""
    own_ids = (app_id.removeprefix(APP_PREFIX) for app_id in app_ids if app_id.startswith(APP_PREFIX))
    names = (own_id.partition(":")[0].split("/") for own_id in own_ids)
    return {(unquote(pair[0]), unquote(pair[1])) for pair in names if len(pair) == 2}


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """Selected messages of one store.

    Attributes:
        store_id: identifier of the store in application ids: the offsets of two stores must not be confused.
        topics: None is all topics that are not excluded.
        excluded_topics: None if system topics are exported.
        include: value of the source's option of this name.
        starting_timestamp: smallest store time, as the source's option.
        ending_timestamp: one past the largest store time.
        queue_bounds: the source's options that bound queues, by name, each JSON by topic and queue.
        from_offset: physical offset from which missing rows are exported again (backfill); None resumes.
        broker: None in a table of one store.
        with_tier: whether the messages are those of a store and its tier, which queue offsets identify.
    """

    store: str
    store_id: str
    topics: tuple[str, ...] | None = None
    excluded_topics: ExcludedTopics | None = None
    include: str | None = None
    starting_timestamp: str | None = None
    ending_timestamp: str | None = None
    starting_physical_offset: int = 0
    queue_bounds: tuple[tuple[str, str], ...] = ()
    from_offset: int | None = None
    broker: BrokerKey | None = None
    with_tier: bool = False

    def of_topic(self, topic: str) -> "ExportSelection":
        topic_bounds = ((name, json.loads(text).get(topic)) for name, text in self.queue_bounds)
        bounds = tuple((name, json.dumps({topic: queues})) for name, queues in topic_bounds if queues is not None)
        return replace(self, topics=(topic,), excluded_topics=None, queue_bounds=bounds)

    @property
    def lock_id(self) -> str:
        """Application id that all exports of the store set, so that they commit one by one."""
        return f"{APP_PREFIX}{self.store_id if self.broker is None else self.broker.id}"

    def is_own_id(self, app_id: str) -> bool:
        """Return whether an application id belongs to any selection of the store."""
        return app_id == self.lock_id or app_id.startswith(f"{self.lock_id}:")

    @property
    def app_id(self) -> str:
        """Application id of the selection; its version is the physical offset up to which it is committed."""
        choice = _join_topics(self.topics) if self.topics is not None else "*" if self.excluded_topics else "**"
        choice += f"|{self.starting_timestamp}|{self.ending_timestamp}|{self.starting_physical_offset}"
        choice += "".join(f"|{name}={text}" for name, text in self.queue_bounds)
        choice += f"|include={self.include}" if self.include is not None else ""
        return f"{self.lock_id}:{hashlib.sha256(choice.encode()).hexdigest()[:16]}"

    def options(self) -> dict[str, str]:
        """Return the options of ``rmq_commitlog``, without physical offsets."""
        source_options = {
            "subscribe": None if self.topics is None else ",".join(self.topics),
            "include": self.include,
            "startingTimestamp": self.starting_timestamp,
            "endingTimestamp": self.ending_timestamp,
        }
        return {name: value for name, value in source_options.items() if value is not None} | dict(self.queue_bounds)

    def read_options(self, start: int, end: int, more: Mapping[str, str]) -> dict[str, str]:
        """Return the options that read the records beginning in ``[start, end)``, with ``more`` options."""
        bounds = {"startingPhysicalOffset": str(start), "endingPhysicalOffset": str(end)}
        lenient = {"failOnDataLoss": "false"}  # the export itself looks for lost bytes and for queues that are absent
        return {**self.options(), **lenient, **more, **bounds, "accessPath": "scan", "path": self.store}

    def batch(self, spark: "SparkSession", start: int, end: int, more: Mapping[str, str]) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: PLC0415

        frame = spark.read.format("rmq_commitlog").options(**self.read_options(start, end, more)).load()
        included = frame if self.excluded_topics is None else frame.where(self.excluded_topics.is_included())
        if self.broker is None:
            return included
        return included.withColumn(CLUSTER, F.lit(self.broker.cluster)).withColumn(BROKER_NAME, F.lit(self.broker.name))


def _join_topics(topics: Sequence[str]) -> str:
    """Join names so that no other names give the same text; ids in existing tables must not change."""
    is_plain = not any("|" in topic for topic in topics)
    return "|".join(topics) if is_plain else f"|{json.dumps(topics)}"  # no name is empty, so only these begin so


def store_identifier(store: str, store_id: str | None) -> str:
    """Return the identifier of a store in tables: ``--store-id`` if given, else the absolute path or the URI."""
    if store_id:
        return store_id
    return store if "://" in store else str(Path(store).resolve())
