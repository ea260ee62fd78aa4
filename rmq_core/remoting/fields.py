"""Reads and writes a command's extension fields as typed structs.

A struct's members are named in the wire's camelCase; a member without a default has to be there, as Java's
``@CFNotNull`` says; numbers and booleans come as text and are converted.
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


@cache
def _decoder(kind: type[Any]) -> Any:
    return msgspec.json.Decoder(kind, strict=False).decode


def read_fields(command: RemotingCommand, kind: type[_T]) -> _T:
    """Read the extension fields of a command as a struct; fields that the struct does not have are ignored.

    Raises:
        ResponseError: one is missing or has a bad value: the answer to give (code 1, Java's remark).
    """
    fields = command.fields
    try:
        if isinstance(fields, dict):
            return msgspec.convert(fields, kind, strict=False)
        return _decoder(kind)(fields)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # as text: a number where a name belongs is right in Java too
        return msgspec.convert(command.ext_fields, kind, strict=False)
    except msgspec.ValidationError as error:
        missing = _MISSING.search(str(error))
        remark = f"the custom field <{missing[1]}> is null" if missing else f"bad custom field: {error}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark) from error


def has_field(command: RemotingCommand, name: str) -> bool:
    """Return True if a command may have an extension field, without decoding: a value with the name counts, too."""
    fields = command.fields
    return name in fields if isinstance(fields, dict) else name.encode() in bytes(fields)


def write_fields(fields: Fields) -> dict[str, str]:
    """Write a struct as extension fields: numbers and booleans as Java's text, None left out."""
    return {
        name: value if type(value) is str else str(value).lower() if type(value) is bool else str(value)
        for name, value in msgspec.to_builtins(fields).items()
        if value is not None
    }


__all__ = ["Fields", "Int32", "Int64", "has_field", "read_fields", "write_fields"]
