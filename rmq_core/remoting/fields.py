"""Extension fields of a command as typed structs.

A struct's members have Java's camelCase names on the wire. A member without a default is required, as with Java's
``@CFNotNull``. Numbers and booleans are converted from text.
"""

import re
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import Int32, RemotingCommand

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_MISSING = re.compile(r"missing required field `(\w+)`")
_T = TypeVar("_T", bound="Fields")


class Fields(msgspec.Struct, gc=False, frozen=True, kw_only=True, rename="camel"):
    """Base of the structs of extension fields."""


class GroupQueue(Fields, frozen=True, kw_only=True):
    """A queue, and a consumer group of its topic."""

    consumer_group: str
    topic: str
    queue_id: Int32


@cache
def _decoder(kind: type[Any]) -> Any:
    return msgspec.json.Decoder(kind, strict=False).decode


def read_fields(command: RemotingCommand, kind: type[_T]) -> _T:
    """Read the extension fields of a command as a struct; fields that the struct does not have are ignored.

    Raises ResponseError with code 1 and Java's remark.
    """
    fields = command.fields
    try:
        if isinstance(fields, dict):
            return msgspec.convert(fields, kind, strict=False)
        return _decoder(kind)(fields)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # as text: Java also accepts a number for a text
        return msgspec.convert(command.ext_fields, kind, strict=False)
    except msgspec.ValidationError as error:
        missing = _MISSING.search(str(error))
        remark = f"the custom field <{missing[1]}> is null" if missing else f"bad custom field: {error}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark) from error


def has_field(command: RemotingCommand, name: str) -> bool:
    """Return True if a command may have an extension field; without decoding, so a value with that text counts, too."""
    fields = command.fields
    return name in fields if isinstance(fields, dict) else name.encode() in bytes(fields)


def write_fields(fields: Fields) -> dict[str, str]:
    """Write a struct as extension fields: numbers and booleans as Java's text, None left out."""
    return {
        name: str(value).lower() if type(value) is bool else str(value)
        for name, value in msgspec.to_builtins(fields).items()
        if value is not None
    }


__all__ = ["Fields", "GroupQueue", "Int32", "Int64", "has_field", "read_fields", "write_fields"]
