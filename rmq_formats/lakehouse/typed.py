"""Typed tables: bodies of a topic decoded to columns, one row a message or one row a key, and dead letters."""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.changes import (
    DELETED,
    MergeRows,
    check_condition,
    key_columns,
    signed_offset,
    tombstone_key,
    tombstone_value,
    with_deletions,
)
from rmq_formats.lakehouse.comments import with_comments
from rmq_formats.lakehouse.constraints import REFUSED, table_constraints, with_refusals
from rmq_formats.lakehouse.evolution import column_types, text_of_a_length
from rmq_formats.lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_formats.lakehouse.raw import ExportCounts, PendingMessages
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.spec import TypedTopic, read_spec_file, read_writer_schemas
from rmq_formats.lakehouse.store_log import StoreLog
from rmq_formats.lakehouse.table_fit import TOPIC_PROPERTY
from rmq_formats.lakehouse.table_log import CommitAttempt, CommitResult, OpenTable, TableSpec, TableTransaction
from rmq_formats.lakehouse.undecoded import Undecoded, set_undecoded
from rmq_formats.spark.options import schemas
from spark_udfs.bodies import BodyDecoder, avro_decoder, json_decoder, protobuf_decoder
from spark_udfs.times import TimeUnits

METADATA = ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "keys", "tags")
_OFFSET = "physical_offset"
VALUE = "__rmq_value"
_log = logging.getLogger("rmq_formats.lakehouse")
_METADATA = schemas.with_brokers(schemas.COMMITLOG)
_DEAD = StructType(
    [
        *(schemas.COMMITLOG[name] for name in (*METADATA[:5], "body")),
        StructField("reason", schemas.COMMITLOG["tags"].dataType),
    ]
)


def body_of(spark: SparkSession, topic: TypedTopic) -> BodyDecoder:
    """Build the body decoder from a topic's schema.

    Raises:
        OptionError: naming the topic and what is wrong with the schema.
    """
    schema_bytes = topic.schema.encode() if topic.schema is not None else read_spec_file(topic.schema_file or "")
    try:
        if topic.format == "json":
            columns = _json_columns(schema_bytes.decode()).toNullable()  # a missing JSON member is null, not a fault
            units = TimeUnits(*topic.time_units)
            check_units(columns, units.by_column)
            zone = str(spark.conf.get("spark.sql.session.timeZone"))
            return json_decoder(columns, units, zone, on_mismatch=topic.on_mismatch, header_bytes=topic.header_bytes)
        if topic.format == "avro":
            columns = _avro_columns(spark, schema_bytes.decode()).toNullable()  # Delta has no NOT NULL inside of arrays
            return avro_decoder(
                schema_bytes.decode(),
                columns,
                writer_schemas=read_writer_schemas(topic),
                on_mismatch=topic.on_mismatch,
                header_bytes=topic.header_bytes,
            )
        from spark_udfs.protobuf import columns as message_columns  # noqa: PLC0415 # only where it is used
        from spark_udfs.protobuf import descriptor  # noqa: PLC0415

        columns = message_columns(descriptor(schema_bytes, str(topic.message)))
        return protobuf_decoder(
            schema_bytes, str(topic.message), columns, on_mismatch=topic.on_mismatch, header_bytes=topic.header_bytes
        )
    except (ValueError, PySparkException) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise OptionError(f"topic {topic.topic!r}: its {topic.format} schema cannot be used: {said[0]}") from error


def _json_columns(text: str) -> StructType:
    try:
        is_json = text.lstrip().startswith("{")
        columns = StructType.fromJson(json.loads(text)) if is_json else StructType.fromDDL(text)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not Spark's JSON of a schema ({error})") from error
    if not isinstance(columns, StructType):
        raise ValueError(f"{text!r} is one column's type, and not columns")
    found = text_of_a_length(columns)
    if found is not None:
        name, kind = found
        raise ValueError(f"column {name} is {kind.simpleString()}, for which tables have STRING")
    return columns


def check_units(columns: StructType, paths: Iterable[str]) -> None:
    """Refuse units of numbers for columns that have no times in them. Raises ValueError.

    A unit of the whole spec may name columns that only other topics have.
    """
    kinds = TimestampType | TimestampNTZType | DateType
    times = [path for path, kind in column_types(columns) if isinstance(kind, kinds)]
    names = {path for path, _ in column_types(columns)}
    for path in names.intersection(paths):
        if not any(time == path or time.startswith(f"{path}.") for time in times):
            raise ValueError(f"timestamp_unit names {path}, which is no column of times")


def _comment(field: StructField) -> dict[str, str]:
    """Return the comment alone: a schema's other metadata are Spark's own."""
    comment = (field.metadata or {}).get("comment")
    return {} if comment is None else {"comment": comment}


def _avro_columns(spark: SparkSession, text: str) -> StructType:
    from spark_udfs.avro import decoder  # noqa: PLC0415 # only where it is used

    decoder(text)
    jvm: Any = spark._jvm
    try:
        schema = getattr(jvm.org.apache.avro, "Schema$Parser")().parse(text)
        schema_json = json.loads(jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(schema).dataType().json())
    except Py4JJavaError as error:
        raise ValueError(error.java_exception.getMessage()) from error
    if not isinstance(schema_json, dict) or schema_json.get("type") != "struct":
        raise ValueError("it is not a record")
    return StructType.fromJson(schema_json)


class TypedExport:
    """Export of one topic to its typed table, and of undecodable messages to the dead letters.

    Args:
        spark: the session.
        topic: of the spec.
        selection: the bounds; of all topics.
        dead_letters: path of their table; None leaves them out.
        open_table: gives the log of a table by its path.

    Raises:
        OptionError: a schema that cannot be used.
    """

    def __init__(
        self,
        spark: SparkSession,
        topic: TypedTopic,
        selection: ExportSelection,
        dead_letters: str | None,
        open_table: OpenTable,
    ) -> None:
        self.name = topic.topic
        self.selection = selection.of_topic(topic.topic)
        self._spark, self._topic = spark, topic
        self._body = body_of(spark, topic)
        broker = () if selection.broker is None else (schemas.CLUSTER, schemas.BROKER_NAME)
        self._metadata = (*METADATA, *broker)
        self._names = {name: topic.metadata_prefix + name for name in self._metadata}
        self._schema = self._columns()
        self._key = key_columns(topic, self._body.columns)
        self._deletes = bool(topic.delete_when) or topic.tombstones
        check_condition(spark, topic, self._body.columns)
        properties = ((TOPIC_PROPERTY, topic.topic), ("rmq.key", ",".join(topic.key) or "none"))
        comment = topic.comment or f"bodies of topic {topic.topic}, decoded as {topic.format}"
        initial_properties = tuple(topic.properties.items())
        table_spec = TableSpec(
            clusters=topic.cluster_by, properties=properties, initial_properties=initial_properties, comment=comment
        )
        self.tables = {topic.table: self._names["store_timestamp"]}
        brokers = topic.metadata_prefix + schemas.CLUSTER, topic.metadata_prefix + schemas.BROKER_NAME
        names = ("store_timestamp", *broker, _OFFSET) if broker else (_OFFSET,)
        self._order = [self._names[name] for name in names]
        order_column = self._order[0] if topic.key else None
        self._table = ExactlyOnceTable(
            topic.table, open_table(topic.table), self.selection, table_spec, self._names[_OFFSET], brokers,
            order_column, [name for part in self._key for name in part.columns],
        )  # fmt: skip
        self._dead_columns = StructType([*_DEAD, *(_METADATA[name] for name in broker)])
        self._dead_letters = None
        if dead_letters is not None:
            dead_letter_spec = TableSpec(
                properties=((TOPIC_PROPERTY, "dead letters"),),
                comment="messages whose body does not decode, with the reason",
            )
            self._dead_letters = ExactlyOnceTable(
                dead_letters, open_table(dead_letters), self.selection, dead_letter_spec
            )
            self.tables[dead_letters] = "store_timestamp"

    def _columns(self) -> StructType:
        topic, body = self._topic, self._body.columns
        known = {name.lower() for name in self._names.values()}
        for field in body:
            if field.name.lower() in known:
                raise OptionError(
                    f"topic {topic.topic!r}: column {field.name!r} of the schema is a column of the message or comes "
                    "twice; metadata_prefix names those of the message"
                )
            known.add(field.name.lower())
        metadata = [StructField(self._names[name], _METADATA[name].dataType) for name in self._metadata]
        own = (StructField(field.name, field.dataType, metadata=_comment(field)) for field in body)
        columns = StructType([*with_comments(StructType(metadata), topic.metadata_prefix), *own])
        for name in topic.cluster_by:
            if name not in columns.fieldNames():
                raise OptionError(f"topic {topic.topic!r}: cluster_by {name!r} is not a column of the table")
        return columns

    def source_options(self) -> dict[str, str]:
        """Return the options for the columns used; bodies are inflated, as they were sent."""
        return {"columns": ",".join([*METADATA, "size", "body", "record_error"]), "decompress": "true"}

    def check(self) -> None:
        """Refuse tables of another store or topic, or that the spec does not fit. Raises StoreError."""
        self._table.check(self._schema)
        if self._dead_letters is not None:
            self._dead_letters.check(self._dead_columns)

    def check_log(self, log: StoreLog) -> None:
        self._table.check_log(log)
        if self._dead_letters is not None:
            self._dead_letters.check_log(log)

    def prepare(self) -> None:
        """Create the tables, and add new columns of the schema."""
        self._table.prepare(self._schema)
        if self._dead_letters is not None:
            self._dead_letters.prepare(with_comments(self._dead_columns))

    def resume_offset(self) -> int:
        """See ``Export``: the smaller offset of both tables."""
        return min(table.resume_offset() for table in self.exactly_once_tables)

    @property
    def exactly_once_tables(self) -> Sequence[ExactlyOnceTable]:
        return [self._table] if self._dead_letters is None else [self._table, self._dead_letters]

    def commit_pending(self, records: PendingMessages) -> ExportCounts:
        """See ``Export``. Bodies are decoded once, for both tables."""
        table, start_rows = self._table, records.start_attempt(self._table)
        attempt = start_rows(table.log.begin_transaction())  # dropped: the attempt shows which rows to count
        decoded = self._decoded(records.union_frame(self.exactly_once_tables)).persist()
        try:
            attempt_rows = decoded.where(F.lit(False) if attempt is None else records.belongs_to_attempt(attempt))
            sound = F.col("reason").isNull()
            damaged = F.count_if("damaged")
            undecoded = F.count_if(~sound & ~F.col("damaged"))
            watermark = F.max(
                F.when(sound, F.unix_millis("store_timestamp") if self.selection.broker else F.col(_OFFSET))
            )
            read = F.sum(F.when(sound, F.col("size")))
            counted = attempt_rows.agg(F.count_if(sound), read, damaged, undecoded, watermark).first()
            assert counted is not None  # an aggregate without groups always has one row
            files = self._commit_dead_letters(decoded, records)

            def start(transaction: TableTransaction) -> CommitAttempt | None:
                return self._with_undecoded_versions(start_rows(transaction), decoded, records)

            def rows(attempt: CommitAttempt) -> DataFrame:
                return self._typed(decoded, records.belongs_to_attempt(attempt))

            if self._topic.key:
                merge = MergeRows(self._key, self._order, self._deletes)
                # The newest message of a table with deletions may have no row, so a missing row proves nothing.
                last_row = None if self._deletes else counted[4]
                table.log.upsert(start, rows, merge, last_row, is_backfill=table.is_backfill)
                messages = counted[0]
            else:
                result = commit_with_retry(
                    table.path, table.log, [start], lambda attempts: table.append(attempts[0], rows(attempts[0]))
                )
                files += result.files
                messages = result.rows
        finally:
            decoded.unpersist()
        counts = ExportCounts(messages, int(counted[1] or 0), counted[2], counted[3], files)
        return counts if attempt is None else counts.with_missing_as_damaged(records.expected_messages(attempt))

    def _with_undecoded_versions(
        self, attempt: CommitAttempt | None, decoded: DataFrame, records: PendingMessages
    ) -> CommitAttempt | None:
        """Add the undecoded messages after the attempt to it: none if the dead letters contain them."""
        if attempt is None:
            return None
        state = Undecoded()
        if self._dead_letters is None:
            undecoded = decoded.where(
                records.belongs_to_attempt(attempt) & F.col("reason").isNotNull() & ~F.col("damaged")
            )
            counted = undecoded.agg(F.count("*"), F.min(_OFFSET)).first()
            assert counted is not None  # an aggregate without groups always has one row
            newly_undecoded = Undecoded(counted[0], counted[1] or 0)
            snapshot = attempt.transaction.snapshot
            state = Undecoded.of_snapshot(snapshot, self._table.app_id).after(attempt, self._table, newly_undecoded)
        return replace(attempt, undecoded_versions=state.versions(self._table.app_id))

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        log, app_id = self._table.log, self._table.app_id
        undecoded = Undecoded.of_snapshot(log.snapshot(), app_id) if log.exists() else Undecoded()
        if not undecoded.count:
            return 0
        if self.name in accepted or self._has_dead_letters():
            set_undecoded(self._table, Undecoded())
            return 0
        _log.warning(
            "%s: %d messages of topic %s are undecoded, the first at physical offset %d: mend the spec and give "
            "--from-offset %d, or give --dlq-table, or --accept-undecoded %s",
            self._table.path, undecoded.count, self.name, undecoded.first, undecoded.first, self.name,
        )  # fmt: skip
        return undecoded.count

    def _has_dead_letters(self) -> bool:
        """Return whether the dead letters are committed as far as the rows."""
        if self._dead_letters is None:
            return False
        app_ids = (self._table.app_id, self._table.queues_id)
        return all(
            self._dead_letters.progress(app_id).verified_offset >= self._table.progress(app_id).verified_offset
            for app_id in app_ids
        )

    def _commit_dead_letters(self, decoded: DataFrame, records: PendingMessages) -> int:
        table = self._dead_letters
        if table is None:
            return 0
        dead = decoded.where(F.col("reason").isNotNull()).select(*self._dead_columns.fieldNames())

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            return table.append(attempts[0], dead.where(records.belongs_to_attempt(attempts[0])))

        return commit_with_retry(table.path, table.log, [records.start_attempt(table)], write).files

    def _decoded(self, frame: DataFrame) -> DataFrame:
        """Decode bodies: metadata, ``size``, ``value``, ``reason``, the body where there is one, and ``damaged``."""
        attempted, reason = self._with_changes(self._body.decode(frame))
        for part in self._key:
            is_null = F.expr(part.sql(VALUE)).isNull()
            reason = F.when(reason.isNull() & is_null, F.lit(f"its key {part.name} is null")).otherwise(reason)
        constraints = table_constraints(self._table.log.schema(), self._table.log.configuration())
        if constraints:
            former = self._table.log.former_columns()
            renamed = {former.get(name, name): column for name, column in self._table_columns(F.col(VALUE)).items()}
            written = {name: column for name, column in renamed.items() if name is not None}
            attempted = with_refusals(attempted, written, constraints)
            reason = F.coalesce(reason, F.when(~F.col(DELETED), F.col(REFUSED)))
        return attempted.select(
            *self._metadata,
            "size",
            F.when(reason.isNull(), F.col(VALUE)).alias("value"),
            reason.alias("reason"),
            F.when(reason.isNotNull(), F.col("body")).alias("body"),
            F.col("record_error").isNotNull().alias("damaged"),
            DELETED,
        )

    def _with_changes(self, attempted: DataFrame) -> tuple[DataFrame, Column]:
        """Add the columns ``VALUE`` and ``DELETED`` to decoded rows; return the reason why a row is a dead letter.

        A tombstone is a row with nothing but its key.
        """
        columns, topic = self._body.columns, self._topic
        reason, value = F.coalesce("record_error", "decoded.reason"), F.col("decoded.value")
        changed = with_deletions(attempted, value, columns, topic.delete_when)
        if topic.tombstones:
            (part,) = self._key
            key, is_empty = tombstone_key(part), F.coalesce(F.octet_length("body"), F.lit(0)) == 0
            is_tombstone = is_empty & F.col("record_error").isNull()
            reason_text = (
                f"column {part.name}: a tombstone whose KEYS are none, wanted {part.kind.simpleString().upper()}"
            )
            reason = F.when(is_tombstone, F.when(key.isNull(), F.lit(reason_text))).otherwise(reason)
            value = F.when(is_tombstone, tombstone_value(columns, part.paths[0], key)).otherwise(value)
            changed = changed.withColumn(DELETED, F.col(DELETED) | is_tombstone)
        return changed.withColumn(VALUE, value), reason

    def _table_columns(self, value: Column) -> dict[str, Column]:
        """Map the names of the table's columns to expressions over a message and its decoded body."""
        metadata = {self._names[name]: F.col(name) for name in self._metadata}
        return {**metadata, **{field.name: value[field.name] for field in self._body.columns}}

    def _typed(self, decoded: DataFrame, owed: Column) -> DataFrame:
        """Select the table's columns of the decoded rows that meet a condition."""
        sound = decoded.where(F.col("reason").isNull() & owed)
        columns = self._table_columns(F.col("value"))
        if self._deletes:
            columns[self._names[_OFFSET]] = signed_offset(F.col(_OFFSET), F.col(DELETED))
        rows = sound.select(*(column.alias(name) for name, column in columns.items()))
        return self._table.with_current_names(rows)
