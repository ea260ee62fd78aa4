"""Names of tiered storage's files, and the unit of its queues, which is a ConsumeQueue's.

::

    <tieredStoreFilePath>/<h(cluster)>_<cluster>/<broker>/<topic>/<queueId>/COMMIT_LOG/<h(base)><base, 20 digits>
                                                                            CONSUME_QUEUE/<h(base)><base, 20 digits>

``h`` is the first 8 hex digits of the MD5 of a text, so that objects spread over a store's partitions; ``base`` is the
number of bytes before the file in its flat file. Source: ``MessageStoreUtil#offset2FileName``, ``#getHash``.
docs/formats/tiered.md
"""

import hashlib
import re
from typing import Final

from rmq_formats.codecs import paths

COMMIT_LOG: Final = "COMMIT_LOG"
CONSUME_QUEUE: Final = "CONSUME_QUEUE"
INDEX_TOPIC: Final = "rmq_sys_INDEX"  # whose queue 0 holds the tier's Index
METADATA: Final = "tieredStoreMetadata.json"  # in a store's ``config``
HASH_DIGITS: Final = 8
_CLUSTER: Final = re.compile(r"([0-9a-f]{8})_(.+)", re.DOTALL)


def name_hash(text: str) -> str:
    """Return the 8 hex digits that stand before a name."""
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:HASH_DIGITS]


def segment_name(base: int) -> str:
    """Return the name of the file that begins at an offset. Raises LengthError."""
    return name_hash(str(base)) + paths.segment_name(base)


def parse_segment_name(name: str, size_bytes: int = 0) -> int | None:
    """Parse a file's name to its offset in bytes; None if it is no segment's, see ``paths.parse_segment_name``."""
    base = paths.parse_segment_name(name[HASH_DIGITS:], size_bytes)
    return base if base is not None and name[:HASH_DIGITS] == name_hash(str(base)) else None


def cluster_directory(cluster: str) -> str:
    """Return the name of a cluster's directory."""
    return f"{name_hash(cluster)}_{cluster}"


def parse_cluster_directory(name: str) -> str | None:
    """Parse a directory's name to that of its cluster; None if it is no cluster's."""
    match = _CLUSTER.fullmatch(name)
    return match[2] if match is not None and match[1] == name_hash(match[2]) else None
