"""Formats of the Apache RocketMQ store: record and file codecs, scan kernels, Spark data sources, and ``Store``.

``Store`` is imported at the first use: it loads numba and pyarrow, which takes a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rmq_formats.errors import (
    ChecksumError,
    DecodeError,
    FormatError,
    LengthError,
    MagicError,
    OptionError,
    RmqError,
    StoreError,
    StoreLockedError,
    StoreNotFoundError,
    StoreSizeError,
    TruncatedError,
)

if TYPE_CHECKING:
    from rmq_formats.codecs.record import MessageToStore, StoredMessage
    from rmq_formats.read.query import Query
    from rmq_formats.storage.segments import Segment
    from rmq_formats.store import Store

    __version__: str

__all__ = [
    "ChecksumError",
    "DecodeError",
    "FormatError",
    "LengthError",
    "MagicError",
    "MessageToStore",
    "OptionError",
    "Query",
    "RmqError",
    "Segment",
    "Store",
    "StoreError",
    "StoreLockedError",
    "StoreNotFoundError",
    "StoreSizeError",
    "StoredMessage",
    "TruncatedError",
    "__version__",
]

_HOMES = {
    "MessageToStore": "codecs.record",
    "Query": "read.query",
    "Segment": "storage.segments",
    "Store": "store",
    "StoredMessage": "codecs.record",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name == "__version__":
        metadata = import_module("importlib.metadata")
        try:
            value = str(metadata.version("rmq-lake"))
        except metadata.PackageNotFoundError:  # run from a source tree
            value = "unknown"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
