"""Schemas of JSON bodies as Arrow columns, without Spark: its DDL, and its own JSON of a schema.

The parser knows a part of Spark's DDL. Of that part it makes the columns that Spark makes of it; of anything else it
makes an error, so that the caller can ask Spark.
"""

import re
from typing import Any, Final

import msgspec
import pyarrow as pa

from rmq_lakehouse.decode.columns import COMMENT, list_of

_TOKEN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9]{1,4})|'(?P<text>[^'\\]*)'"
    r"|(?P<sign>[<>(),:]))",
    re.ASCII,
)
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_TYPES: Final = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": _TIMESTAMP, "timestamp_ltz": _TIMESTAMP, "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_NESTED: Final = frozenset({"struct", "array", "map"})
_DECIMALS: Final = frozenset({"decimal", "dec", "numeric"})
_MAX_DIGITS: Final = 38  # of a DECIMAL
_MAX_DEPTH: Final = 64  # limit: far more than a schema has, and far less than Python's stack


class UnknownSchemaError(ValueError):
    """Schema outside of the DDL of this parser; Spark's parser may accept the schema."""


def json_columns(text: str) -> pa.Schema:
    """Convert the schema of a spec to nullable columns, with comments as metadata. Raises UnknownSchemaError."""
    try:
        columns = _spark_json(text) if text.lstrip().startswith("{") else _Ddl(text).columns()
    except RecursionError:
        raise UnknownSchemaError("the schema is nested too deeply") from None
    if not len(columns):
        raise UnknownSchemaError("the schema has no columns")
    return columns


class _Ddl:
    """Parser of one text: ``id BIGINT, name STRING COMMENT 'who', tags ARRAY<STRING>``."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise UnknownSchemaError(f"{text[position : position + 20].strip()!r} in the schema")
            assert match.lastgroup is not None  # each alternative is a group
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        self._tokens.append(("end", ""))
        self._next = 0

    def columns(self) -> pa.Schema:
        return pa.schema(_checked(self._fields("end", depth=0)))

    def _fields(self, end: str, depth: int) -> list[pa.Field]:
        """Parse members of a struct up to the token ``end``."""
        fields = []
        while True:
            is_quoted = self._tokens[self._next][0] == "quoted"
            name = self._expect("quoted" if is_quoted else "word")
            self._accept(":")
            kind = self._type(depth)
            self._accept_words("not", "null")
            comment = self._expect("text") if self._accept_words("comment") else None
            fields.append(pa.field(name.replace("``", "`") if is_quoted else name, kind, metadata=_metadata(comment)))
            if not self._accept(","):
                self._expect(end)
                return fields

    def _type(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise UnknownSchemaError("the schema is nested too deeply")
        name = self._expect("word").lower()
        if name in _DECIMALS:
            return self._decimal()
        if name in _TYPES:
            return _TYPES[name]
        if name not in _NESTED:
            raise UnknownSchemaError(f"type {name} in the schema")
        self._expect("<")
        if name == "struct":
            return pa.struct(_checked(self._fields(">", depth + 1)))
        kinds = [self._type(depth + 1)]
        if name == "map":
            self._expect(",")
            kinds.append(self._type(depth + 1))
        self._expect(">")
        return pa.map_(*kinds) if name == "map" else list_of(*kinds)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = int(self._expect("number"))
            scale = int(self._expect("number")) if self._accept(",") else 0
            self._expect(")")
        return _decimal(precision, scale)

    def _accept(self, sign: str) -> bool:
        """Return whether the next token is a sign, and pass it then."""
        is_next = self._tokens[self._next] == ("sign", sign)
        self._next += is_next
        return is_next

    def _accept_words(self, *words: str) -> bool:
        following = self._tokens[self._next : self._next + len(words)]
        is_next = [(kind, text.lower()) for kind, text in following] == [("word", word) for word in words]
        self._next += len(words) * is_next
        return is_next

    def _expect(self, token: str) -> str:
        """Return the text of the next token, whose kind or sign must be ``token``."""
        kind, text = self._tokens[self._next]
        if token not in ((text,) if kind == "sign" else (kind,)):
            raise UnknownSchemaError(f"{text!r} in the schema" if text else "the schema ends too early")
        self._next += 1
        return text


class _Field(msgspec.Struct):
    """Member of a struct in Spark's JSON."""

    name: str
    type: Any
    metadata: dict[str, Any] = {}


def _spark_json(text: str) -> pa.Schema:
    try:
        return pa.schema(_json_fields(msgspec.json.decode(text)))
    except msgspec.MsgspecError as error:
        raise UnknownSchemaError(f"not Spark's JSON of a schema ({error})") from error


def _json_fields(struct: Any) -> list[pa.Field]:
    if not isinstance(struct, dict) or struct.get("type") != "struct":
        raise UnknownSchemaError("the schema is no struct")
    fields = []
    for field in msgspec.convert(struct.get("fields"), list[_Field]):
        comment = field.metadata.get("comment")
        if set(field.metadata) - {"comment"} or not isinstance(comment, str | None):
            raise UnknownSchemaError(f"metadata of column {field.name}")
        fields.append(pa.field(field.name, _json_type(field.type), metadata=_metadata(comment)))
    return _checked(fields)


def _json_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        decimal = re.fullmatch(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)", kind, re.ASCII)
        if decimal is not None:
            return _decimal(int(decimal[1]), int(decimal[2]))
        if kind in _TYPES:
            return _TYPES[kind]
    elif isinstance(kind, dict) and kind.get("type") == "struct":
        return pa.struct(_json_fields(kind))
    elif isinstance(kind, dict) and kind.get("type") == "array":
        return list_of(_json_type(kind.get("elementType")))
    elif isinstance(kind, dict) and kind.get("type") == "map":
        return pa.map_(_json_type(kind.get("keyType")), _json_type(kind.get("valueType")))
    raise UnknownSchemaError(f"type {kind} in the schema")


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not (1 <= precision <= _MAX_DIGITS and scale <= precision):
        raise UnknownSchemaError(f"type DECIMAL({precision},{scale})")
    return pa.decimal128(precision, scale)


def _metadata(comment: str | None) -> dict[bytes, bytes] | None:
    return None if comment is None else {COMMENT: comment.encode()}


def _checked(fields: list[pa.Field]) -> list[pa.Field]:
    """Refuse names that differ in case only, which are the same name in a table."""
    names = {field.name.lower() for field in fields}
    if len(names) < len(fields):
        raise UnknownSchemaError("a name comes twice in the schema")
    return fields
