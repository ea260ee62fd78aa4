"""File and directory names of a store, as strings joined with ``/``: a root may be a path or a URI."""

from functools import partial
from typing import Final

from rmq_formats.errors import FormatError, LengthError

SEGMENT_NAME_DIGITS: Final = 20
INDEX_NAME_DIGITS: Final = 17  # yyyyMMddHHmmssSSS
MAX_TOPIC_BYTES: Final = 255  # topics are directory names; file systems allow no more
COMPRESSED_ENDINGS: Final = frozenset({"gz", "bz2", "xz", "zst", "lz4", "zip", "Z", "lzo", "sz"})
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_QUEUE_ID_DIGITS: Final = 10  # of a Java int


def _join(directory: str, name: str) -> str:
    return f"{directory}{name}" if not directory or directory.endswith("/") else f"{directory}/{name}"


def segment_name(start_offset: int) -> str:
    """Return the name of a file by its offset in log or queue (``UtilAll#offset2FileName``). Raises LengthError."""
    if not 0 <= start_offset <= _MAX_OFFSET:
        raise LengthError("an offset that no segment can have", expected=f"0..{_MAX_OFFSET}", actual=start_offset)
    return f"{start_offset:0{SEGMENT_NAME_DIGITS}d}"


def parse_compressed_segment_name(name: str) -> int | None:
    """Return the offset that a segment's name with the ending of a compressed file states; None for other names."""
    stem, _, ending = name.partition(".")
    return parse_segment_name(stem) if ending in COMPRESSED_ENDINGS else None


def parse_segment_name(name: str, size_bytes: int = 0) -> int | None:
    """Parse a segment file name to its start offset in bytes; None if it is not a segment's name.

    A file whose size lets it end beyond the largest offset is no segment either.
    """
    if len(name) != SEGMENT_NAME_DIGITS or not _is_digits(name):
        return None
    start_offset = int(name)
    return start_offset if start_offset + size_bytes <= _MAX_OFFSET else None


def is_index_file_name(name: str) -> bool:
    """Return whether a name is that of an IndexFile: its creation time, 17 digits."""
    return len(name) == INDEX_NAME_DIGITS and _is_digits(name)


def parse_queue_id(name: str) -> int | None:
    """Return the queue id that a directory's name stands for; None if it is no queue's."""
    return int(name) if _is_digits(name) and len(name) <= _MAX_QUEUE_ID_DIGITS and int(name) < 1 << 31 else None


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def is_safe_topic(topic: str) -> bool:
    """Return whether a topic can be the name of a directory, and of no other than its own.

    Topics are read from records' bytes: without this check a crafted topic could name a path outside the store.
    """
    if not topic or topic in {".", ".."} or "/" in topic or "\0" in topic:
        return False
    try:
        return len(topic.encode()) <= MAX_TOPIC_BYTES
    except UnicodeEncodeError:
        return False


# Paths of a store, by its root.
commitlog_dir: Final = partial(_join, name="commitlog")
consumequeue_dir: Final = partial(_join, name="consumequeue")
consumequeue_ext_dir: Final = partial(_join, name="consumequeue_ext")
batch_consumequeue_dir: Final = partial(_join, name="batchconsumequeue")
index_dir: Final = partial(_join, name="index")
config_dir: Final = partial(_join, name="config")
checkpoint_file: Final = partial(_join, name="checkpoint")
abort_file: Final = partial(_join, name="abort")  # there while a broker runs, and after it was killed
lock_file: Final = partial(_join, name="lock")  # a running broker locks its first byte exclusively


def queue_dir(consumequeue_dir: str, topic: str, queue_id: int) -> str:
    """Return the directory of one queue's files, in ``consumequeue`` or ``consumequeue_ext``.

    Raises FormatError if the topic is not safe as a directory name, see ``is_safe_topic``.
    """
    if not is_safe_topic(topic):
        raise FormatError(f"topic {topic!r} cannot name a directory")
    return _join(_join(consumequeue_dir, topic), str(queue_id))
