"""Columns and decoders of topics' bodies by the schemas of their specs, without Spark."""

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from rmq_lakehouse.decode import json_body
from rmq_lakehouse.decode.bodies import BodyDecoder, Decode
from rmq_lakehouse.decode.columns import check_types, column_types
from rmq_lakehouse.decode.json_structs import bodies_decoder
from rmq_lakehouse.decode.mismatch import RESCUE, RESCUED, UNKNOWN_FIELDS
from rmq_lakehouse.decode.spark_ddl import json_columns
from rmq_lakehouse.decode.times import TimeUnits
from rmq_lakehouse.spec import SharedUnits, TypedTopic, read_spec_file, read_writer_schemas


def schema_columns(topic: TypedTopic) -> pa.Schema:
    """Convert the schema of a topic's bodies, or of their elements, to columns that may all be null.

    Raises:
        UnknownSchemaError: a JSON schema that Spark's parser may know.
        OptionError: a file that cannot be read.
        ValueError: the schema cannot be used.
    """
    schema = read_schema(topic)
    if topic.format == "json":
        return json_columns(schema.decode())
    if topic.format == "avro":
        from rmq_lakehouse.decode.avro import columns as avro_columns  # noqa: PLC0415 # only where it is used

        try:
            return avro_columns(schema.decode(), explode=topic.explode)
        except ValueError as error:
            raise ValueError(f"{topic.schema_file}: {error}" if topic.schema_file else str(error)) from error
    from rmq_lakehouse.decode import protobuf  # noqa: PLC0415 # only where it is used

    message = protobuf.descriptor(schema, str(topic.message))
    return protobuf.columns(protobuf.list_field(message).message_type if topic.explode else message)


def read_schema(topic: TypedTopic) -> bytes:
    """Return the schema of a topic's bodies, of the spec or of a file. Raises OptionError."""
    return topic.schema.encode() if topic.schema is not None else read_spec_file(topic.schema_file or "")


def build_decoder(topic: TypedTopic, columns: pa.Schema, selected_columns: pa.Schema, zone: str) -> BodyDecoder:
    """Build the decoder of a topic's bodies to the columns that the table has. Raises OptionError, ValueError.

    Args:
        zone: time zone of times in JSON without a zone.
    """
    check_types(selected_columns)
    if topic.format == "json":
        return _json_decoder(topic, columns, selected_columns, zone)
    selected = frozenset(path for path, _ in column_types(selected_columns)) if topic.columns else None
    if topic.format == "avro":
        from rmq_lakehouse.decode.avro import decoder as avro_decoder  # noqa: PLC0415 # only where it is used

        writer_schemas = read_writer_schemas(topic)
        make: Callable[[], Decode] = partial(
            avro_decoder,
            read_schema(topic).decode(),
            writer_schemas,
            topic.on_mismatch,
            selected=selected,
            explode=topic.explode,
            table_columns=columns,
        )
        header_bytes = 0 if writer_schemas is not None else topic.header_bytes
    else:
        from rmq_lakehouse.decode.protobuf import decoder as protobuf_decoder  # noqa: PLC0415 # only where it is used

        make = partial(
            protobuf_decoder,
            read_schema(topic),
            str(topic.message),
            topic.on_mismatch,
            selected=selected,
            unknown_fields=topic.unknown_fields,
            explode=topic.explode,
        )
        header_bytes = topic.header_bytes
    make()  # a schema that cannot be used is known here
    return BodyDecoder(_value_type(topic, selected_columns), make, header_bytes, topic.explode)


def _json_decoder(topic: TypedTopic, columns: pa.Schema, selected_columns: pa.Schema, zone: str) -> BodyDecoder:
    units = TimeUnits(*topic.time_units)
    _check_units(topic, columns)
    value_type, selected = _value_type(topic, selected_columns), pa.struct(list(selected_columns))
    make = partial(
        json_body.decoder,
        selected,
        units,
        zone,
        topic.on_mismatch,
        schema=pa.struct(list(columns)),
        explode=topic.explode,
    )
    make()  # a type without JSON is known here
    make_for_batches = partial(
        bodies_decoder, selected, units, zone, value_type=value_type, header_bytes=topic.header_bytes
    )
    return BodyDecoder(value_type, make, topic.header_bytes, topic.explode, make_for_batches)


def _value_type(topic: TypedTopic, columns: pa.Schema) -> pa.StructType:
    """Return the type of a decoded body: its columns, and texts for unknown fields and for values that do not fit."""
    texts = {UNKNOWN_FIELDS: topic.unknown_fields, RESCUED: topic.on_mismatch == RESCUE}
    return pa.struct([*columns, *(pa.field(name, pa.string()) for name, is_enabled in texts.items() if is_enabled)])


def _check_units(topic: TypedTopic, columns: pa.Schema) -> None:
    """Refuse units of numbers for columns that do not exist, or have no times in them. Raises ValueError."""
    kinds = list(column_types(columns))
    paths = {path for path, _ in kinds}
    times = [path for path, kind in kinds if pa.types.is_timestamp(kind) or kind == pa.date32()]
    for path in topic.time_units[1]:
        if path not in paths:
            if isinstance(topic.timestamp_unit, SharedUnits):
                continue
            raise ValueError(f"timestamp_unit names {path}, which is no column of the schema")
        if not any(time == path or time.startswith(f"{path}.") for time in times):
            raise ValueError(f"timestamp_unit names {path}, which is no column of times")
