"""Typed tables: bodies of a topic decoded to columns, one row a message or one row a key, and dead letters."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.errors import OptionError
from rmq_formats.spark.options import schemas
from rmq_lakehouse.change_data import (
    DELETED,
    TOMBSTONE_KEY,
    TOMBSTONE_REASON,
    MergeRows,
    check_condition,
    condition_reason,
    is_empty_body,
    key_columns,
    select_keys,
    signed_offset,
    tombstone_value,
    with_deletions,
    with_former_keys,
    with_tombstone_keys,
)
from rmq_lakehouse.comments import with_comments
from rmq_lakehouse.dead_letters import REFUSED, DeadLetters, table_constraints, with_refusals
from rmq_lakehouse.decode.bodies import ELEMENT
from rmq_lakehouse.decode.spark import build_body_decoder
from rmq_lakehouse.delta.columns import partition_reason
from rmq_lakehouse.delta.features import property_requiring_delta_writer
from rmq_lakehouse.evolution import column, with_wider_types
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.exports import ExportCounts, ExportTables
from rmq_lakehouse.parquet import Layout, stats_columns
from rmq_lakehouse.partition_columns import check_partitions, time_column, time_fields
from rmq_lakehouse.partitions import TIME_COLUMNS, parse_partition, source_columns
from rmq_lakehouse.raw import PendingMessages
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spark_table import SparkExactlyOnceTable
from rmq_lakehouse.spec import METADATA, TypedTopic, check_column_names, table_comment, table_properties
from rmq_lakehouse.table_log import (
    CommitAttempt,
    NeedsWriterError,
    OpenTable,
    PendingRange,
    SparkTableLog,
    TableSpec,
    TableTransaction,
)
from rmq_lakehouse.typed_table import (
    OutputTable,
    TypedTable,
    dead_letter_columns,
    find_partition_texts,
    messages_to_read,
    typed_columns,
)
from rmq_lakehouse.undecoded import Undecoded, resolve_undecoded, with_undecoded
from rmq_offline.spark.runner import SparkRunner

_OFFSET = "physical_offset"
VALUE = "__rmq_value"
_METADATA = StructType([*schemas.with_brokers(schemas.COMMITLOG), StructField(ELEMENT, IntegerType())])


def _comment(field: StructField) -> dict[str, str]:
    """Return the comment alone: a schema's other metadata are Spark's own."""
    comment = (field.metadata or {}).get("comment")
    return {} if comment is None else {"comment": comment}


def _with_types_of(log: SparkTableLog, columns: StructType) -> StructType:
    """Replace types of columns by the wider types of a table: values are compared with the table's types."""
    return with_wider_types(columns, log.schema(), log.former_columns()) if log.exists() else columns


class TypedExport(ExportTables):
    """Export of one topic to its typed table, and to the dead-letter table, if any. Raises OptionError."""

    def __init__(
        self,
        spark: SparkSession,
        topic: TypedTopic,
        selection: ExportSelection,
        dead_letters: str | None,
        open_table: OpenTable,
        *,
        adopts: bool = False,
    ) -> None:
        self.name = topic.topic
        self.selection = selection.of_topic(topic.topic)
        self._spark, self._topic = spark, topic
        log = open_table(topic.table)
        self._body = build_body_decoder(spark, topic, partial(_with_types_of, log))
        broker = () if selection.broker is None else (CLUSTER, BROKER_NAME)
        self._metadata = (*METADATA, *broker, *((ELEMENT,) if topic.explode else ()))
        # An exploded message has a decoded row for each element, from 0 on. The only row of an empty array is -1, which
        # is not in the table.
        self._is_message = F.col(ELEMENT) <= 0 if topic.explode else F.lit(True)
        self._is_row = F.col(ELEMENT) >= 0 if topic.explode else F.lit(True)
        self._names = {name: topic.metadata_prefix + name for name in self._metadata}
        self._partitions = tuple(str(parse_partition(text)) for text in topic.partition_by)
        former = log.former_columns() if log.exists() else {}
        partition_texts = find_partition_texts(log, topic, self._body.decoder.value_type, former)
        self._body = replace(self._body, decoder=replace(self._body.decoder, partition_texts=partition_texts))
        tags = pa.struct([pa.field(self._names["tags"], pa.string())])
        self._tag_partitions = find_partition_texts(log, topic, tags, former)
        body_names = self._body.columns.fieldNames()
        self._time_columns = [name for name in self._partitions if name in TIME_COLUMNS and name not in body_names]
        self._times = [name for name in source_columns(self._time_columns) if name not in self._metadata]
        self._schema = self._columns()
        check_partitions(self._partitions, self._schema, f"topic {topic.topic!r}: partition_by")
        self._key = key_columns(topic, self._body.columns)
        self._deletes = bool(topic.delete_when) or topic.tombstones
        self._merges_deletions = self._deletes or any(part.after_path is not None for part in self._key)
        check_condition(spark, topic, self._body.columns)
        stats = stats_columns(self._arrow_columns(), self._partitions)
        table_spec = TableSpec(
            self._partitions,
            topic.cluster_by,
            stats=tuple(dict.fromkeys((*stats, *topic.cluster_by))),
            properties=table_properties(topic),
            initial_properties=tuple(topic.properties.items()),
            comment=table_comment(topic),
            adopts=adopts,
        )
        self.tables = {topic.table: self._names["store_timestamp"]}
        brokers = topic.metadata_prefix + CLUSTER, topic.metadata_prefix + BROKER_NAME
        names = ("store_timestamp", *broker, _OFFSET) if broker else (_OFFSET,)
        self._order = [self._names[name] for name in names]
        order_column = self._order[0] if topic.key else None
        self._table = SparkExactlyOnceTable(
            topic.table,
            log,
            self.selection,
            table_spec,
            self._names[_OFFSET],
            brokers,
            order_column,
            [name for part in self._key for name in part.columns],
        )
        self._dead_letters = None
        if dead_letters is not None:
            self._dead_letters = DeadLetters(dead_letters, open_table(dead_letters), self.selection)
            self.tables[dead_letters] = "store_timestamp"

    def _arrow_columns(self) -> pa.Schema:
        return typed_columns(self._topic, self._metadata, self._body.decoder.value_type, tuple(self._time_columns))

    def _columns(self) -> StructType:
        topic, body = self._topic, self._body.columns
        check_column_names(topic, self._names.values(), body.fieldNames(), self._time_columns)
        metadata = [StructField(self._names[name], _METADATA[name].dataType) for name in self._metadata]
        body_columns = (StructField(field.name, field.dataType, metadata=_comment(field)) for field in body)
        times = with_comments(StructType(time_fields(self._time_columns)))
        columns = StructType([*with_comments(StructType(metadata), topic.metadata_prefix), *body_columns, *times])
        for name in topic.cluster_by:
            if name not in columns.fieldNames():
                raise OptionError(f"topic {topic.topic!r}: cluster_by {name!r} is not a column of the table")
        return columns

    def source_options(self) -> dict[str, str]:
        """Return the options for the columns used; bodies are inflated, as they were sent."""
        properties = ("properties",) if self._topic.tombstones else ()
        return {"columns": ",".join((*messages_to_read(self._time_columns), *properties)), "decompress": "true"}

    def table_schemas(self) -> Iterator[tuple[ExactlyOnceTable, StructType]]:
        yield self._table, self._schema
        if self._dead_letters is not None:
            yield self._dead_letters.table, self._dead_letters.columns

    def commit_pending(self, records: PendingMessages) -> ExportCounts:
        """Commit the messages that the tables lack; bodies are decoded once, for both tables."""
        table = self._tasks_table()
        if table is None:
            return self._commit_by_spark(records)
        try:
            return table.commit_pending(records)
        except NeedsWriterError as error:
            counts = self._commit_by_spark(records)
            return replace(counts, files=counts.files + error.files)

    def _tasks_table(self) -> TypedTable | None:
        """Return the tables as tasks write them; None if Spark has to write the rows of one."""
        if self._topic.key:
            return None
        broker, times = self.selection.broker, tuple(self._time_columns)
        body = self._body.decoder
        rows = self._output(self._table, self._schema, self._arrow_columns(), self._partitions, {})
        dead, dead_letters = self._dead_letters, None
        if dead is not None:
            texts = {"topic": self.name}
            dead_letters = self._output(dead.table, dead.columns, dead_letter_columns(broker), (), texts)
        try:
            for output in filter(None, (rows, dead_letters)):
                output.layout()
        except NeedsWriterError:
            return None
        return TypedTable(SparkRunner(self._spark), body, self._metadata, times, broker, rows, dead_letters)

    def _output(
        self,
        table: SparkExactlyOnceTable,
        columns: StructType,
        schema: pa.Schema,
        partitions: Sequence[str],
        texts: Mapping[str, str],
    ) -> OutputTable:
        """Return a table as tasks write it; ``layout`` raises NeedsWriterError if Spark has to write the rows."""

        def layout() -> Layout:
            properties = {name: value for name, value in table.log.configuration().items() if name.startswith("delta.")}
            if table_constraints(table.log) or property_requiring_delta_writer(properties) is not None:
                raise NeedsWriterError
            stats = stats_columns(schema, partitions)
            task_layout = table.layout(self._spark, columns, stats)
            if task_layout is None:
                raise NeedsWriterError
            return task_layout

        return OutputTable(table, schema, layout, partial(table.committed_offsets, texts=texts))

    def _commit_by_spark(self, records: PendingMessages) -> ExportCounts:
        table, start_rows = self._table, records.start_attempt(self._table)
        attempt = start_rows(table.log.begin_transaction())  # not committed: the attempt shows which rows to count
        decoded = self._decoded(records.union_frame(self.exactly_once_tables)).persist()
        try:
            pending = F.lit(False) if attempt is None else records.belongs_to_attempt(attempt)
            decodes = F.col("reason").isNull()
            sound = pending & decodes
            sound_message = sound & self._is_message
            position = F.unix_millis("store_timestamp") if self.selection.broker else F.col(_OFFSET)
            totals = decoded.agg(
                F.count_if(sound_message).alias("messages"),
                F.sum(F.when(sound_message, F.col("size"))).alias("bytes"),
                F.count_if(pending & F.col("damaged")).alias("damaged"),
                F.count_if(pending & ~decodes & ~F.col("damaged") & self._is_message).alias("undecoded"),
                F.max(F.when(sound & self._is_row, position)).alias("watermark"),
                F.count_if(sound & ~self._is_row).alias("rowless"),
                # Another attempt may have more rows than this one, but none that are not here.
                F.count_if(decodes).alias("decodable"),
                F.count_if(self._is_dead_letter).alias("dead_letters"),
            ).first()
            assert totals is not None  # an aggregate without groups always has one row
            files, dead_letter_range = self._commit_dead_letters(decoded, records, totals.dead_letters)

            def start(transaction: TableTransaction) -> CommitAttempt | None:
                return self._with_undecoded_versions(start_rows(transaction), decoded, records, dead_letter_range)

            def rows(attempt: CommitAttempt) -> DataFrame:
                return self._select_rows(decoded, records.belongs_to_attempt(attempt))

            if not totals.decodable:
                commit_with_retry(table.path, table.log, [start], None)
                messages = 0
            elif self._topic.key:
                element = self._names[ELEMENT] if self._topic.explode else None
                merge = MergeRows(self._key, self._order, self._merges_deletions, element)
                # The newest message of a table with deletions may have no row, so a missing row proves nothing.
                last_row = None if self._deletes else totals.watermark
                table.log.upsert(start, rows, merge, last_row, is_backfill=table.is_backfill)
                messages = totals.messages
            else:
                first_rows = self._first_rows()
                result = commit_with_retry(
                    table.path,
                    table.log,
                    [start],
                    lambda attempts: table.append(attempts[0], rows(attempts[0]), counted=first_rows),
                )
                files += result.files
                if self._topic.explode and first_rows is None:
                    messages = totals.messages
                else:  # of messages without rows the table does not tell whether they were exported before
                    messages = result.rows + (0 if attempt is None or attempt.needs_dedup else totals.rowless)
        finally:
            decoded.unpersist()
        counts = ExportCounts(messages, int(totals.bytes or 0), totals.damaged, totals.undecoded, files)
        return counts if attempt is None else counts.with_missing_as_damaged(records.expected_messages(attempt))

    def _first_rows(self) -> Column | None:
        """Return the condition of a message's first row in the table; None without a column that tells it."""
        if not self._topic.explode:
            return None
        name = self._names[ELEMENT]
        current_name = self._table.log.former_columns().get(name, name)
        return None if current_name is None else column(current_name) <= 0

    def _with_undecoded_versions(
        self,
        attempt: CommitAttempt | None,
        decoded: DataFrame,
        records: PendingMessages,
        dead_letter_range: PendingRange | None,
    ) -> CommitAttempt | None:
        """Add the undecoded messages after the attempt to it, without those of the dead letters just committed."""
        if attempt is None:
            return None
        if attempt.pending_range == dead_letter_range:
            return with_undecoded(attempt, self._table, Undecoded())
        undecoded = decoded.where(records.belongs_to_attempt(attempt) & self._is_dead_letter & ~F.col("damaged"))
        totals = undecoded.agg(F.count("*"), F.min(_OFFSET), F.max(_OFFSET)).first()
        assert totals is not None  # an aggregate without groups always has one row
        return with_undecoded(attempt, self._table, Undecoded.of_offsets(*totals))

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        dead_letters = None if self._dead_letters is None else self._dead_letters.table
        return resolve_undecoded(self._table, dead_letters, accepted, self.name)

    def _commit_dead_letters(
        self, decoded: DataFrame, records: PendingMessages, count: int
    ) -> tuple[int, PendingRange | None]:
        dead = self._dead_letters
        if dead is None:
            return 0, None
        messages = decoded.where(self._is_dead_letter) if count else None
        return dead.commit(messages, records.start_attempt(dead.table), records.belongs_to_attempt)

    @property
    def _is_dead_letter(self) -> Column:
        return F.col("reason").isNotNull() & self._is_message

    def _decoded(self, frame: DataFrame) -> DataFrame:
        """Decode bodies: metadata, ``size``, ``value``, ``reason``, the body where there is one, and ``damaged``."""
        messages = select_keys(frame) if self._topic.tombstones else frame
        decoded, reason = self._with_changes(self._body.decode(messages))
        row_reasons = [
            F.when(F.expr(part.sql(VALUE)).isNull(), F.lit(f"its key {part.name} is null")) for part in self._key
        ]
        if self._topic.delete_when:
            row_reasons.append(condition_reason(self._topic.delete_when))
        for name in self._tag_partitions.columns:
            is_named = self._tag_partitions.has_directories
            fault = partition_reason(name, F.col("tags"), has_directories=is_named)
            row_reasons.append(F.when(~F.col(DELETED), fault))
        constraints = table_constraints(self._table.log)
        if constraints:
            former = self._table.log.former_columns()
            renamed = {former.get(name, name): column for name, column in self._table_columns(F.col(VALUE)).items()}
            written = {name: column for name, column in renamed.items() if name is not None}
            decoded = with_refusals(decoded, written, constraints)
            row_reasons.append(F.when(~F.col(DELETED), F.col(REFUSED)))
        if row_reasons:
            reason = F.coalesce(reason, self._message_reason(F.when(self._is_row, F.coalesce(*row_reasons))))
        return decoded.select(
            *self._metadata,
            *self._times,
            "size",
            F.when(reason.isNull(), F.col(VALUE)).alias("value"),
            reason.alias("reason"),
            F.when(reason.isNotNull(), F.col("body")).alias("body"),
            F.col("record_error").isNotNull().alias("damaged"),
            DELETED,
        )

    def _message_reason(self, row_reason: Column) -> Column:
        """Return the first reason of a message's rows: the message is in the table with all its rows, or not at all."""
        if not self._topic.explode:
            return row_reason
        element_reason = F.concat(F.lit("element "), F.col(ELEMENT), F.lit(": "), row_reason)
        message = Window.partitionBy("queue_id", "queue_offset", _OFFSET).orderBy(ELEMENT)
        all_rows = message.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        return F.first(element_reason, ignorenulls=True).over(all_rows)

    def _with_changes(self, decoded: DataFrame) -> tuple[DataFrame, Column]:
        """Add the columns ``VALUE`` and ``DELETED`` to decoded rows; return the reason why a row is a dead letter.

        A tombstone is a row with nothing but its key.
        """
        columns, topic = self._body.columns, self._topic
        reason, value = F.coalesce("record_error", "decoded.reason"), F.col("decoded.value")
        changed = with_deletions(decoded, value, columns, topic.delete_when)
        if topic.tombstones:
            (part,) = self._key
            changed, key = with_tombstone_keys(changed, part), F.col(TOMBSTONE_KEY)
            # Other elements than the first have no body.
            is_tombstone = is_empty_body() & F.col("record_error").isNull() & self._is_message
            reason = F.when(is_tombstone, F.col(TOMBSTONE_REASON)).otherwise(reason)
            value = F.when(is_tombstone, tombstone_value(columns, part.paths[0], key)).otherwise(value)
            changed = changed.withColumn(DELETED, F.col(DELETED) | is_tombstone)
        return changed.withColumn(VALUE, value), reason

    def _table_columns(self, value: Column) -> dict[str, Column]:
        """Map the names of the table's columns to expressions over a message and its decoded body."""
        metadata = {self._names[name]: F.col(name) for name in self._metadata}
        times = {name: time_column(name) for name in self._time_columns}
        return {**metadata, **{field.name: value[field.name] for field in self._body.columns}, **times}

    def _select_rows(self, decoded: DataFrame, condition: Column) -> DataFrame:
        sound = decoded.where(F.col("reason").isNull() & self._is_row & condition)
        sound = with_former_keys(sound, "value", self._key)
        columns = self._table_columns(F.col("value"))
        if self._merges_deletions:
            columns[self._names[_OFFSET]] = signed_offset(F.col(_OFFSET), F.col(DELETED))
        rows = sound.select(*(column.alias(name) for name, column in columns.items()))
        return self._table.with_current_columns(rows)
