"""Explains the access paths of a DataFrame's sources, for which Spark's ``explain()`` has no place."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.catalog import table_options
from rmq_formats.spark.options.read import batch_only, commitlog_options

Source = tuple[str, dict[str, str]]  # format and options


def explain(frame: DataFrame) -> str:
    """Describe each ``rmq_commitlog`` that a DataFrame reads, a line a store: path, access path, reason, tasks.

    It plans the read again, and reads no record. Filters that Spark pushes down are not included. In a session of
    Spark Connect a task does this, since the server sees the store and the client may not; sources within views
    are not known there.
    """
    if hasattr(frame, "_jdf"):
        return "\n".join(_lines(_sources(frame)))
    connected: Any = frame  # whose class is another one, with a plan in Python
    sources = list(_sources_of_message(connected._plan.to_proto(connected.sparkSession._client)))
    rows = frame.sparkSession.range(1, numPartitions=1).mapInArrow(partial(_explained, sources), "line string")
    return "\n".join(row.line for row in rows.collect())


def _explained(sources: Sequence[Source], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"line": pa.array(_lines(sources), pa.string())})


def _lines(sources: Sequence[Source]) -> list[str]:
    lines = []
    for name, options in sources:
        if name == "rmq_commitlog":
            read_options = batch_only(commitlog_options(options))
            lines += [
                f"{name} {store_plan.store}: {store_plan.plan or store_plan.missing}"
                for store_plan in plans_of(read_options)
            ]
        elif name.startswith("rmq_"):
            lines.append(f"{name} {options.get('path') or options.get('paths', '')}: read as it stands")
    return lines


def _sources(frame: DataFrame) -> list[Source]:
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()  # a DataFrame has no plan in Python
    sources = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
            options = leaf.options().asCaseSensitiveMap()
            schema = StructType.fromJson(json.loads(leaf.schema().json()))
            source_options = table_options(schema, {str(key): str(options[key]) for key in options})
            sources.append((str(leaf.table().name()), source_options))
    return sources


def _sources_of_message(message: Any) -> Iterator[Source]:
    """Find the sources in a message of Spark Connect's protocol and in its nested messages."""
    if message.DESCRIPTOR.full_name == "spark.connect.Read.DataSource":
        path = {"path": message.paths[0]} if len(message.paths) == 1 else {}
        yield message.format, {**message.options, **path}
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if isinstance(value, Sequence) or hasattr(value, "add") else [value]:
                yield from _sources_of_message(part)
