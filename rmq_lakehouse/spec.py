"""Spec file of typed tables: topics, body formats and table paths. TOML, or JSON by its name.

What follows of it for each table, by Spark or without: columns of the message, comment and properties.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from rmq_formats.errors import OptionError
from rmq_lakehouse.table_name import placed

Unit = Literal["s", "ms", "us", "ns"]
TOPIC_PROPERTY: Final = "rmq.topic"
"""Property of typed tables and dead-letter tables. Raw tables do not have this property."""
REGISTRY_HEADER_BYTES: Final = 5
"""Bytes of a schema registry's header: a zero, and the schema's id, big-endian."""
_REGISTRY_TYPE: Final = "AVRO"  # of a schema, if a registry's answer names no other
_MAX_SPEC_BYTES: Final = 64 << 20  # limit: a spec is written by hand, but descriptors of large systems have megabytes
METADATA: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "keys", "tags")


class SharedUnits(dict[str, Unit]):
    """Units of a whole spec by column, which may name columns that only other topics have."""


class TypedTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spec of one topic whose bodies become columns.

    Attributes:
        table: path of its table; a relative one is beside the spec. Or its name, ``catalog.schema.table``.
        schema: JSON: columns in Spark's DDL, or Spark's own JSON of a schema; Avro: the schema.
        schema_file: a file with it, beside the spec; Protobuf: a FileDescriptorSet, as ``protoc -o`` writes it.
        message: Protobuf: full name of the message.
        explode: whether a body is an array of objects, each of which is a row; a single object is one row.
        columns: paths of the schema's columns that the table has, with all that is within them; empty is all.
        key: columns that identify a row, or paths into them: the last message of a key is its row. Without a key each
            message is a row.
        delete_when: condition over the decoded columns, in SQL: a message that meets it deletes the row of its key.
        tombstones: whether an empty body deletes the row whose key is the message's KEYS.
        cluster_by: columns that OPTIMIZE clusters the table by.
        partition_by: partitions of the table: columns, days and hours of times, transforms of Iceberg.
        metadata_prefix: prefix of the names of the columns that are not the body's.
        comment: of the table, when it is created.
        properties: of the table, when it is created.
        header_bytes: of a header in front of each body, such as the 5 of a schema registry.
        writer_schemas: Avro: directory with the schemas of all writers, ``ID.avsc`` or ``ID.json``, by the id in the
            header of a schema registry; bodies are resolved to ``schema``.
        on_mismatch: what becomes of a value that its column cannot hold: its message a dead letter, or the value null,
            or null with the value in the column ``_rescued``.
        unknown_fields: Protobuf: whether the table has a column ``_unknown_fields``, a JSON text of the fields that the
            schema lacks.
        timestamp_unit: JSON: unit of numbers in columns of times, or of those of some columns by their paths.
    """

    topic: str
    table: str
    format: Literal["json", "avro", "protobuf"]
    schema: str | None = None
    schema_file: str | None = None
    message: str | None = None
    explode: bool = False
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    delete_when: str = ""
    tombstones: bool = False
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    metadata_prefix: str = ""
    comment: str = ""
    properties: dict[str, str] = {}
    header_bytes: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    timestamp_unit: Unit | dict[str, Unit] | None = None
    writer_schemas: str | None = None
    on_mismatch: Literal["dead-letter", "null", "rescue"] = "dead-letter"
    unknown_fields: bool = False

    @property
    def time_units(self) -> tuple[str | None, dict[str, str]]:
        """Unit of all columns of times, None without one, and those of some columns."""
        unit = self.timestamp_unit
        return (None, dict(unit)) if isinstance(unit, dict) else (unit, {})


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[TypedTopic]
    timestamp_unit: Unit | dict[str, Unit] | None = None


def load_spec(path: str) -> list[TypedTopic]:
    """Load the topics of a spec, their paths absolute. Raises OptionError."""
    decode = msgspec.json.decode if path.endswith(".json") else msgspec.toml.decode
    try:
        spec = decode(read_spec_file(path), type=_Spec)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: {error}") from error
    beside = Path(path).absolute().parent
    topics = [_with_unit(_placed(path, beside, topic), spec.timestamp_unit) for topic in spec.topics]
    if not topics:
        raise OptionError(f"{path}: names no topic")
    for attribute in ("topic", "table"):
        names = [getattr(topic, attribute) for topic in topics]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"{path}: {attribute} {name!r} comes twice")
    return topics


def _placed(path: str, beside: Path, topic: TypedTopic) -> TypedTopic:
    has_descriptors, has_writer_schemas = topic.format == "protobuf", topic.writer_schemas is not None
    header_problem = f"header_bytes {topic.header_bytes} does not go with writer_schemas, whose headers have"
    problems = {
        "give either schema or schema_file": (topic.schema is None) == (topic.schema_file is None),
        "message is required for format protobuf, and only there": has_descriptors != (topic.message is not None),
        "format protobuf needs a schema_file with its descriptors": has_descriptors and topic.schema is not None,
        "delete_when and tombstones need a key": (topic.delete_when or topic.tombstones) and not topic.key,
        "tombstones need a key of one column: KEYS are one text": topic.tombstones and len(topic.key) > 1,
        "partition_by and cluster_by exclude each other": topic.partition_by and topic.cluster_by,
        "timestamp_unit is of format json": topic.format != "json" and topic.timestamp_unit is not None,
        "unknown_fields is of format protobuf": topic.unknown_fields and not has_descriptors,
        "writer_schemas is of format avro": has_writer_schemas and topic.format != "avro",
        f"{header_problem} {REGISTRY_HEADER_BYTES}": has_writer_schemas
        and topic.header_bytes not in {0, REGISTRY_HEADER_BYTES},
    }
    for problem, is_given in problems.items():
        if is_given:
            raise OptionError(f"{path}: topic {topic.topic!r}: {problem}")
    file = None if topic.schema_file is None else str(beside / topic.schema_file)
    directory = None if topic.writer_schemas is None else str(beside / topic.writer_schemas)
    table = placed(topic.table, beside)
    return msgspec.structs.replace(topic, table=table, schema_file=file, writer_schemas=directory)


def _with_unit(topic: TypedTopic, unit: Unit | dict[str, Unit] | None) -> TypedTopic:
    """Give a JSON topic the unit of the whole spec, where it has none of its own."""
    if unit is None or topic.timestamp_unit is not None or topic.format != "json":
        return topic
    return msgspec.structs.replace(topic, timestamp_unit=SharedUnits(unit) if isinstance(unit, dict) else unit)


def read_writer_schemas(topic: TypedTopic) -> dict[int, str] | None:
    """Read the writers' schemas of a topic by their ids; None without ``writer_schemas``.

    A file is a schema, or a registry's answer with the schema as its text ``schema``. Answers with schemas of another
    ``schemaType`` are left out: a registry may have those of other topics. Raises OptionError: the directory cannot be
    read, has no schema, or has two files of one id.
    """
    if topic.writer_schemas is None:
        return None
    directory = Path(topic.writer_schemas)
    try:
        files = sorted(
            file for file in directory.iterdir() if file.suffix in {".avsc", ".json"} and file.stem.isdecimal()
        )
    except OSError as error:
        raise OptionError(f"{directory}: cannot be read ({error.strerror})") from error
    schemas: dict[int, str] = {}
    for file in files:
        if int(file.stem) in schemas:
            raise OptionError(f"{file}: another file has schema {int(file.stem)}. Remove one")
        schema = _writer_schema(file)
        if schema is not None:
            schemas[int(file.stem)] = schema
    if not schemas:
        raise OptionError(f"{directory}: has no ID.avsc or ID.json. Give a directory with the writers' schemas")
    return schemas


def _writer_schema(file: Path) -> str | None:
    """Return the Avro schema of a file; None for a registry's answer with a schema of another type."""
    text = read_spec_file(str(file))
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OptionError(f"{file}: {error}") from error
    if isinstance(schema, dict) and isinstance(schema.get("schema"), str):
        is_avro = str(schema.get("schemaType") or _REGISTRY_TYPE).upper() == _REGISTRY_TYPE
        return str(schema["schema"]) if is_avro else None
    return text.decode()


def read_spec_file(path: str) -> bytes:
    """Read a spec, or a file that it names. Raises OptionError."""
    try:
        if Path(path).stat().st_size > _MAX_SPEC_BYTES:
            raise OptionError(f"{path}: larger than {_MAX_SPEC_BYTES} bytes")
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from error


def table_comment(topic: TypedTopic) -> str:
    """Return the comment of a new table."""
    return topic.comment or f"bodies of topic {topic.topic}, decoded as {topic.format}"


def table_properties(topic: TypedTopic) -> tuple[tuple[str, str], ...]:
    """Return the properties by which later exports know the table."""
    return (TOPIC_PROPERTY, topic.topic), ("rmq.key", ",".join(topic.key) or "none")


def check_column_names(
    topic: TypedTopic, metadata: Iterable[str], body: Iterable[str], time_columns: Collection[str]
) -> None:
    """Refuse a column of the body whose name the table has already, in any case. Raises OptionError."""
    names = {name.lower() for name in metadata}
    for name in body:
        if name.lower() in names:
            raise OptionError(
                f"topic {topic.topic!r}: column {name!r} of the schema is a column of the message or comes twice; "
                "metadata_prefix names those of the message"
            )
        if name.lower() in time_columns:
            raise OptionError(
                f"topic {topic.topic!r}: partition_by {name.lower()!r} is column {name!r} of the schema in another "
                f"case: give {name!r}"
            )
        names.add(name.lower())
