"""Converts the values of a body to the types that it declares, as fastjson does.

A number may stand as text and a text as number, a boolean as 0, 1 or text, an enum's constant by name in any case or by
ordinal, and a member's name in any case. What fastjson refuses stays as it is, so that msgspec names it.

Source: fastjson 1.2.83 (``EnumDeserializer``, ``TypeUtils``, ``JavaBeanDeserializer#smartMatch``), fastjson2
(``ObjectReaderImplEnum``).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from rmq_core.remoting import fastjson

Converter = Callable[[Any], Any]
_CONSTANTS: Final = "constants"
_IS_OPEN: Final = "is_open"


def enum_meta(*constants: str, is_open: bool = False) -> msgspec.Meta:
    """Declare a text as an enum.

    Args:
        constants: their names, in the order of their ordinals.
        is_open: other names stay as they are, for the handler to refuse; else they become empty, as Java's null.
    """
    pattern = None if is_open else f"^(?:|{'|'.join(constants)})$"
    return msgspec.Meta(pattern=pattern, extra={_CONSTANTS: constants, _IS_OPEN: is_open})


def _make_converter(kind: Any) -> Converter:
    """Make the function that converts a value for a type; None is a null of Java."""
    return _converter(inspect.type_info(kind), {})


def _list_member_names(kind: Any) -> frozenset[bytes]:
    """List the names of all members that a type has, and those within it."""
    structs: dict[type[Any], Converter] = {}
    _converter(inspect.type_info(kind), structs)
    return frozenset(field.encode_name.encode() for struct in structs for field in msgspec.structs.fields(struct))


converter: Callable[[Any], Converter] = cache(_make_converter)
member_names: Callable[[Any], frozenset[bytes]] = cache(_list_member_names)


def _converter(kind: inspect.Type, structs: dict[type[Any], Converter]) -> Converter:
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            return (
                _enum(extra[_CONSTANTS], is_open=extra[_IS_OPEN])
                if extra and _CONSTANTS in extra
                else _converter(inner, structs)
            )
        case inspect.StrType():
            return _text
        case inspect.IntType():
            return fastjson.integer
        case inspect.BoolType():
            return fastjson.boolean
        case inspect.ListType(item_type=item):
            return _list(_converter(item, structs))
        case inspect.DictType(key_type=key, value_type=value):
            return _mapping(_converter(key, structs), _converter(value, structs))
        case inspect.StructType(cls=struct):
            if struct not in structs:
                structs[struct] = _struct(kind, structs)
            return structs[struct]
        case inspect.UnionType(types=types):
            inner_types = [member for member in types if not isinstance(member, inspect.NoneType)]
            return _converter(inner_types[0], structs) if len(inner_types) == 1 else _plain
    return _plain


def _struct(kind: inspect.StructType, structs: dict[type[Any], Converter]) -> Converter:
    types = {field.encode_name: field.type for field in kind.fields}
    converters = {name: _converter(field_type, structs) for name, field_type in types.items()}
    names = {_smart(name): name for name in types}

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        members: dict[str, Any] = {}
        for key, item in value.items():
            name = key if key in converters else names.get(_smart(key))
            if name is None or (name != key and name in value):
                continue
            converted = None if item is None else converters[name](item)
            if converted is not None:
                members[name] = converted
        return members

    return convert


def _smart(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _enum(constants: tuple[str, ...], *, is_open: bool) -> Converter:
    names = {name.lower(): name for name in constants}

    def convert(value: Any) -> Any:
        ordinal = fastjson.integer(value) if not isinstance(value, bool | float) else value
        if type(ordinal) is int and 0 <= ordinal < len(constants):
            return constants[ordinal]
        return names.get(value.lower(), fastjson.text(value) if is_open else "") if isinstance(value, str) else value

    return convert


def _list(convert: Converter) -> Converter:
    def convert_items(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [item for item in map(convert, value) if item is not None]

    return convert_items


def _mapping(convert_key: Converter, convert: Converter) -> Converter:
    def convert_items(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = ((convert_key(key), convert(item)) for key, item in value.items() if item is not None)
        return {key: item for key, item in items if item is not None}

    return convert_items


def _text(value: Any) -> Any:
    return None if value is None else fastjson.text(value)


def _plain(value: Any) -> Any:
    """Remove members that are null, and halves of surrogate pairs, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return fastjson.text(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
