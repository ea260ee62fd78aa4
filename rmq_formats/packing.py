"""Packing numbers into the fields of a layout, with an error of ours where one does not fit."""

from struct import Struct
from struct import error as struct_error

from rmq_formats.errors import LengthError


def pack_fields(layout: Struct, *values: int) -> bytes:
    """The values in a layout's fields.

    Raises:
        LengthError: a value is out of its field's range.
    """
    try:
        return layout.pack(*values)
    except struct_error as error:
        raise LengthError(f"a number does not fit into its field: {error}", actual=values) from error
