"""Which of a store's messages an export lands, and by which name it is known in a table."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Topics that are not exported.

    Attributes:
        names: whole names.
        prefix: of names.
    """

    names: tuple[str, ...]
    prefix: str

    def keeps(self) -> Column:
        """Whether a row stays; one without a topic is a damaged stretch, and does."""
        topic = F.col("topic")
        return topic.isNull() | ~(topic.isin(*self.names) | topic.startswith(self.prefix))

    def keeps_arrow(self, topics: pa.Array) -> pa.Array:
        """The same of a column of topics."""
        left_out = pc.or_(pc.is_in(topics, pa.array(self.names, pa.string())), pc.starts_with(topics, self.prefix))
        return pc.or_(pc.is_null(topics), pc.fill_null(pc.invert(left_out), True))


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of one store.

    Attributes:
        store: the store's root.
        store_id: which store it is: offsets of two must not be taken for one another's.
        topics: their names; None is all but those that are left out.
        left_out: RocketMQ's own topics; None if they are asked for.
        starting_timestamp: smallest store time, as the source's option; None is any.
        ending_timestamp: one past the largest; None is any.
        starting_physical_offset: of the first record.
        queue_bounds: the source's options that bound queues, by name, each JSON by topic and queue.
    """

    store: str
    store_id: str
    topics: tuple[str, ...] | None = None
    left_out: LeftOut | None = None
    starting_timestamp: str | None = None
    ending_timestamp: str | None = None
    starting_physical_offset: int = 0
    queue_bounds: tuple[tuple[str, str], ...] = ()

    def of_topic(self, topic: str) -> "Selection":
        """The same bounds, of one topic."""
        given = ((name, json.loads(text).get(topic)) for name, text in self.queue_bounds)
        bounds = tuple((name, json.dumps({topic: queues})) for name, queues in given if queues is not None)
        return replace(self, topics=(topic,), left_out=None, queue_bounds=bounds)

    @property
    def lock_id(self) -> str:
        """The transaction identifier that all exports of the store into a table set: one at a time."""
        return f"rmq-export:{self.store_id}"

    @property
    def app_id(self) -> str:
        """The transaction identifier of these messages; its version is the offset where their export ended."""
        chosen = "|".join(self.topics) if self.topics is not None else "*" if self.left_out else "**"
        chosen += f"|{self.starting_timestamp}|{self.ending_timestamp}|{self.starting_physical_offset}"
        chosen += "".join(f"|{name}={text}" for name, text in self.queue_bounds)
        return f"{self.lock_id}:{hashlib.sha256(chosen.encode()).hexdigest()[:16]}"

    def options(self) -> dict[str, str]:
        """The source's options."""
        given = {
            "subscribe": None if self.topics is None else ",".join(self.topics),
            "startingTimestamp": self.starting_timestamp,
            "endingTimestamp": self.ending_timestamp,
        }
        return {name: value for name, value in given.items() if value is not None} | dict(self.queue_bounds)

    def read_options(self, start: int, end: int, more: Mapping[str, str]) -> dict[str, str]:
        """The source's options for the records that begin in ``[start, end)``, with ``more`` of them."""
        bounds = {"startingPhysicalOffset": str(start), "endingPhysicalOffset": str(end)}
        return {**self.options(), **more, **bounds, "accessPath": "scan", "path": self.store}

    def batch(self, spark: SparkSession, start: int, end: int, more: Mapping[str, str]) -> DataFrame:
        """The rows of these."""
        return self.chosen(spark.read.format("rmq_commitlog").options(**self.read_options(start, end, more)).load())

    def chosen(self, frame: DataFrame) -> DataFrame:
        """Without the rows of topics that are left out."""
        return frame if self.left_out is None else frame.where(self.left_out.keeps())


def identify(store: str, given: str | None) -> str:
    """A store's name in tables: the one that was given, else its absolute path or URI."""
    if given:
        return given
    return store if "://" in store else str(Path(store).resolve())
