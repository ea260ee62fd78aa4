"""Generates a store in bulk, without a broker: a CommitLog as Java writes it for a Java client's sends.

Only the CommitLog and ``config/topics.json`` are written: a broker that opens the store builds the rest. Each
record's size and offset follow from its number alone, so that chunks are encoded and written in parallel.
"""

import json
import os
import re
import shutil
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import shake_256
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import BLANK_BYTES, COMMITLOG_FILE_BYTES, MAGIC_BLANK, MAGIC_V1, MAX_BODY_BYTES
from rmq_formats.codecs.record_layout import HEADS, PROPERTIES_LENGTH, RECORD_HEAD_BYTES, SIZE_AND_MAGIC, TOPIC_LENGTH
from rmq_formats.errors import OptionError, StoreError
from rmq_formats.kernels.encode.template import (
    BODY_SLICES,
    MASK_STRIDE,
    SEQUENCE_DIGITS,
    TEXT_STRIDE,
    VARYING_UNIQ_KEY_BYTES,
    encode_records,
)
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.contained import is_there, parent_directory, replace_file
from rmq_formats.storage.store_files import open_store
from rmq_offline.write.topics import topic_config

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
OnWritten = Callable[[int, int], None]

MAX_MESSAGES: Final = 10**SEQUENCE_DIGITS
MAX_FILE_BYTES: Final = (1 << 31) - 1  # mappedFileSizeCommitLog is a Java int
CHUNK_BYTES: Final = 2 << 20  # records encoded and written at once; more than a core's L2 cache holds only costs time
WORKERS: Final = 2  # threads: one encodes while another's chunk is written; a file has one writer at a time

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_LOCALHOST = b"\x7f\0\0\1"
_BORN_HOST = Host(_LOCALHOST, 38752).to_bytes()
_STORE_HOST = Host(_LOCALHOST, 10911).to_bytes()
_STAGING = "commitlog.generating"


@dataclass(frozen=True, slots=True)
class GeneratedStore:
    """Counts of what ``generate_store`` wrote; ``bytes`` is without BLANKs and unused ends of files."""

    messages: int
    bytes: int
    files: int


class _Template(NamedTuple):
    """Fields that the records of a generated store share: the last arguments of `encode_records`, in order."""

    epoch_ms: int
    queues: int
    body_bytes: int
    head: ByteArray
    tails: ByteArray
    tail_bytes: np.ndarray[Any, np.dtype[np.int64]]
    text: ByteArray
    mask: ByteArray
    from_end: np.ndarray[Any, np.dtype[np.int64]]


class _Sizes:
    """Running sums of record sizes, which repeat with the topics: where each record begins when laid end to end."""

    def __init__(self, record_bytes: Sequence[int]) -> None:
        self._starts = [0, *accumulate(record_bytes)]
        self._round_bytes = self._starts.pop()

    def before(self, message: int) -> int:
        rounds, topic = divmod(message, len(self._starts))
        return rounds * self._round_bytes + self._starts[topic]

    def stop(self, first: int, space: int) -> int:
        """Return one past the last message that fits, whole, into ``space`` bytes that begin with ``first``."""
        rounds, rest = divmod(self.before(first) + space, self._round_bytes)
        return rounds * len(self._starts) + bisect_right(self._starts, rest) - 1


@dataclass(frozen=True, slots=True)
class _Chunk:
    path: Path
    position: int
    physical_offset: int
    first: int
    stop: int


def generate_store(
    root: str,
    *,
    messages: int,
    body_bytes: int,
    topics: Sequence[str],
    queues: int,
    keys: bool,
    tags: bool,
    seed: int = 0,
    commitlog_file_bytes: int = COMMITLOG_FILE_BYTES,
    on_progress: OnWritten | None = None,
) -> GeneratedStore:
    """Write ``<root>/commitlog`` and ``<root>/config/topics.json``, with equal bytes for equal arguments.

    Message i goes to topic ``i % len(topics)`` and there to queue ``i // len(topics) % queues``. The log is
    written under another name and renamed: it exists whole or not at all. Nothing is fsynced.

    Args:
        messages: at most MAX_MESSAGES.
        body_bytes: size of each body, 1 to 4 MiB. Bodies differ as far as their last 10 bytes allow.
        keys: whether messages have a KEYS property, each another one.
        tags: whether messages have a TAGS property, TagA to TagE.
        seed: of bodies, times (the first of a month in 2025) and UNIQ_KEYs.
        on_progress: called now and then, in the caller's thread, with the messages and bytes done.

    Raises:
        OptionError: an argument out of its bounds.
        StoreError: the root already holds a store, or cannot be written.
    """
    _check_options(messages, body_bytes, topics, queues, commitlog_file_bytes)
    template = _template(topics, queues, body_bytes, keys, tags, seed)
    sizes = _Sizes([RECORD_HEAD_BYTES + body_bytes + int(tail) for tail in template.tail_bytes])
    largest = RECORD_HEAD_BYTES + body_bytes + int(template.tail_bytes.max())
    if largest + BLANK_BYTES > commitlog_file_bytes:
        raise OptionError(
            f"a CommitLog file of {commitlog_file_bytes} bytes cannot hold a record of {largest} and a BLANK"
        )
    store = Path(root)
    _check_unused(store)
    staging = store / _STAGING
    try:
        if (store / "commitlog").exists():
            (store / "commitlog").rmdir()  # fail early, not at the end, if it cannot be replaced: a link, a mount
        shutil.rmtree(staging, ignore_errors=True)  # left by a run that was killed
        staging.mkdir(parents=True)
        try:
            chunks = _lay_out(staging, sizes, messages, commitlog_file_bytes)
            _write_chunks(chunks, template, sizes, max(CHUNK_BYTES, largest), on_progress)
            _write_topics(store, topics, queues, template.epoch_ms)
            files = len(list(staging.iterdir()))
            staging.rename(store / "commitlog")
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"cannot write the store {root}: {error.strerror}") from error
    return GeneratedStore(messages, sizes.before(messages), files)


def _check_options(messages: int, body_bytes: int, topics: Sequence[str], queues: int, file_bytes: int) -> None:
    if not 0 <= messages <= MAX_MESSAGES:
        raise OptionError(f"messages must be 0 to {MAX_MESSAGES}, not {messages}")
    if not 1 <= body_bytes <= MAX_BODY_BYTES:
        raise OptionError(f"body_bytes must be 1 to {MAX_BODY_BYTES}, not {body_bytes}")
    if not 1 <= queues < 1 << 31:
        raise OptionError(f"queues must be 1 to {(1 << 31) - 1}, not {queues}")
    if file_bytes > MAX_FILE_BYTES:
        raise OptionError(f"commitlog_file_bytes must be at most {MAX_FILE_BYTES}, not {file_bytes}")
    if not topics or len(set(topics)) != len(topics):
        raise OptionError("topics must be at least one name, and each only once")
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            raise OptionError(f"not a topic's name: {topic!r} (1 to 127 of letters, digits, '%', '|', '_', '-')")


def _check_unused(store: Path) -> None:
    """Refuse a root in use: Java would read old queues, or a crash's checkpoint, as the new log's."""
    for name in ("commitlog", "consumequeue", "index", "batchconsumequeue", "compaction"):
        if (store / name).is_dir() and any((store / name).iterdir()):
            raise StoreError(f"{store} already holds a store: {name} is not empty")
    files = open_store(str(store))
    layout_refusals.refuse(layout_refusals.log_replacement_refusal(files.layouts))
    layout_refusals.refuse(layout_refusals.timer_log_refusal(files.storage, files.root))
    if (store / "abort").exists():
        raise StoreError(f"{store} is in use, or was when its broker died: it has an abort file")


def _template(topics: Sequence[str], queues: int, body_bytes: int, keys: bool, tags: bool, seed: int) -> _Template:
    # SHAKE-256: the same bytes on every machine and with every version of numpy.
    source = shake_256(f"rmq generate {seed}".encode())
    text_bytes = BODY_SLICES * TEXT_STRIDE + body_bytes
    mask_bytes = BODY_SLICES * MASK_STRIDE + body_bytes
    random = np.frombuffer(source.digest(6 + text_bytes + mask_bytes), dtype=np.uint8)
    process_and_loader = random[:6].tobytes().hex().upper()  # process id and hash of the class loader
    low_bits = random[6:] & np.uint8(0x1F)

    # A HashMap's order, as in a real broker's files. \1 and \2 separate; 5.x ends with \2 as well.
    properties = "MSG_REGION\1DefaultRegion\2UNIQ_KEY\1" + _LOCALHOST.hex().upper() + process_and_loader
    uniq_at = len(properties)
    properties += "0" * VARYING_UNIQ_KEY_BYTES + "\2CLUSTER\1DefaultCluster\2" + "TAGS\1Tag" * tags
    tag_at = len(properties)
    properties += "A\2" * tags + "KEYS\1order-" * keys
    key_at = len(properties)
    properties += ("0" * SEQUENCE_DIGITS + "\2") * keys + "WAIT\1true\2TRACE_ON\1true\2"
    end = len(properties)

    rows = [
        TOPIC_LENGTH[MAGIC_V1].pack(len(topic)) + topic.encode() + PROPERTIES_LENGTH.pack(end) + properties.encode()
        for topic in topics
    ]
    tails = np.zeros((len(rows), max(map(len, rows))), dtype=np.uint8)
    for tail, row in zip(tails, rows, strict=True):
        tail[: len(row)] = np.frombuffer(row, dtype=np.uint8)
    # The kernel sets size, CRC, queue, offsets and times; flag, sys_flag, reconsume_times and
    # prepared_transaction_offset stay 0.
    head = HEADS[0].pack(0, MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, _BORN_HOST, 0, _STORE_HOST, 0, 0, body_bytes)
    return _Template(
        epoch_ms=int(datetime(2025, 1 + seed % 12, 1, tzinfo=UTC).timestamp()) * 1000,
        queues=queues,
        body_bytes=body_bytes,
        head=np.frombuffer(head, dtype=np.uint8).copy(),
        tails=tails,
        tail_bytes=np.array([len(row) for row in rows], dtype=np.int64),
        text=low_bits[:text_bytes] | np.uint8(0x40),  # '@' to '_', and still so after the XOR with the mask
        mask=low_bits[text_bytes:].copy(),
        from_end=np.array([end - uniq_at, (end - tag_at) * tags, (end - key_at) * keys], dtype=np.int64),
    )


def _lay_out(directory: Path, sizes: _Sizes, messages: int, file_bytes: int) -> Iterator[_Chunk]:
    """Create the files with their BLANKs, and yield the records and offsets of each chunk.

    A message goes into a file only if a BLANK still fits after the message (``CommitLog#doAppend``).
    """
    first = file_offset = 0
    while first < messages:
        file_start = sizes.before(first)
        file_stop = min(messages, sizes.stop(first, file_bytes - BLANK_BYTES))
        used = sizes.before(file_stop) - file_start
        path = directory / f"{file_offset:020d}"
        with path.open("xb") as file:
            file.truncate(file_bytes)
            if file_stop < messages:
                file.seek(used)
                file.write(SIZE_AND_MAGIC.pack(file_bytes - used, MAGIC_BLANK))
        while first < file_stop:
            position = sizes.before(first) - file_start
            stop = min(file_stop, max(first + 1, sizes.stop(first, CHUNK_BYTES)))
            yield _Chunk(path, position, file_offset + position, first, stop)
            first = stop
        file_offset += file_bytes


def _write_chunks(
    chunks: Iterator[_Chunk], template: _Template, sizes: _Sizes, buffer_bytes: int, on_progress: OnWritten | None
) -> None:
    # A chunk reuses the buffer of the one WORKERS + 1 before it, which has been waited for.
    buffers = deque(np.empty(buffer_bytes, dtype=np.uint8) for _ in range(WORKERS + 1))
    pending: deque[tuple[_Chunk, Future[None]]] = deque()

    def finish_oldest() -> None:
        chunk, written = pending.popleft()
        written.result()
        if on_progress is not None:
            on_progress(chunk.stop, sizes.before(chunk.stop))

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="generate") as pool:
        for chunk in chunks:
            if len(pending) == len(buffers):
                finish_oldest()
            pending.append((chunk, pool.submit(_write_chunk, chunk, template, buffers[0])))
            buffers.rotate(-1)
        while pending:
            finish_oldest()


def _write_chunk(chunk: _Chunk, template: _Template, buffer: ByteArray) -> None:
    written = encode_records(buffer, chunk.first, chunk.stop - chunk.first, chunk.physical_offset, *template)
    with chunk.path.open("r+b") as file:  # buffered: continues after a short write
        file.seek(chunk.position)
        file.write(buffer[:written].data)


def _write_topics(store: Path, topics: Sequence[str], queues: int, epoch_ms: int) -> None:
    """Write ``config/topics.json``; an old one becomes the ``.bak`` (``ConfigManager#persist``)."""
    configs = {topic: topic_config(topic, queues) for topic in topics}
    version = {"counter": 1, "stateVersion": 0, "timestamp": epoch_ms}
    text = json.dumps({"dataVersion": version, "topicConfigTable": configs}, indent=1)
    with parent_directory(store, "config/topics.json", create=True) as (config, name):
        if is_there(name, config):
            os.replace(name, f"{name}.bak", src_dir_fd=config, dst_dir_fd=config)
        replace_file(config, name, text.encode())
