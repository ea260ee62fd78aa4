"""Small stores, and messages of all kinds to fill them with."""

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads, Worker, WorkerRun
from rmq_core.store.results import PutResult, PutStatus, split_records
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import StoredMessage

NOW_MS = 1_700_000_000_000
HOST = Host.parse("10.0.0.7:38752").to_bytes()
V6_HOST = Host.parse("[2001:db8::1]:38752").to_bytes()
STORE_HOST = Host.parse("127.0.0.1:10911")
_BLANK_MAGIC = bytes.fromhex("cbd43194")
LONG_TOPIC = "%RETRY%" + "L" * 130


def config_of(root: Any, **changes: Any) -> StoreConfig:
    """Settings with small files, so that all kinds of them roll."""
    settings: dict[str, Any] = {
        "root": str(root), "commitlog_file_bytes": 16_384, "consumequeue_file_bytes": 400, "index_slots": 50,
        "index_entries": 100, "delay_levels": "1s 5s", "flush_disk_type": FlushDiskType.ASYNC,
        "delete_log_interval_ms": 0,
    }  # fmt: skip
    return StoreConfig(**{**settings, **changes})


BATCH_TOPIC = "Batches"
# Settings of stores that have other queues as well; see ``config_of_kind``.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "light queues": {"lmq_enabled": True, "multi_dispatch_enabled": True},
    "batch queues": {"batchconsumequeue_file_bytes": 230},
}


def config_of_kind(kind: str, root: Path, **changes: Any) -> StoreConfig:
    """As ``config_of``, of a store of one of KINDS."""
    if kind == "batch queues" and not (root / "config").exists():
        name_batch_topics(root, BATCH_TOPIC)
    return config_of(root, **KINDS[kind], **changes)


def batch_topics_of(config: StoreConfig) -> tuple[str, ...]:
    """Topics with batch queues of a store of one of KINDS."""
    return (BATCH_TOPIC,) if (Path(config.root) / "config" / "topics.json").exists() else ()


def name_batch_topics(root: Path, *topics: str) -> None:
    """Write what tells a store that topics have batch queues."""
    (root / "config").mkdir(parents=True, exist_ok=True)
    table = {name: {"topicName": name, "attributes": {"queue.type": "BatchCQ"}} for name in topics}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


class QuickDisk(Disk):
    """A disk that waits for nothing: where no power is lost, what was written is there."""

    def sync(self, descriptor: int) -> None:
        os.fstat(descriptor)

    def sync_directory(self, path: str) -> None:
        os.stat(path)  # noqa: PTH116 # as Disk takes it


class FullDisk(QuickDisk):
    """A disk that takes no bytes while it is full."""

    is_full = False

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")
        super().write(descriptor, data, offset)


class _Resting(Worker):
    """A worker that takes no turns: its steps are called."""

    def start(self, wait_s: float | None) -> None:
        """Take no turns."""


class NoThreads(Threads):
    """No threads at all."""

    def worker(self, name: str, run: WorkerRun) -> Worker:
        return _Resting(name, run)


def opened(
    config: StoreConfig, now_ms: int = NOW_MS, disk: Disk | None = None, threads: Threads | None = None
) -> MessageStore:
    """The store, open."""
    return MessageStore.open(config, now_ms, store_host=STORE_HOST, disk=disk or QuickDisk(), threads=threads)


def put(store: MessageStore, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **others: Any) -> PutResult:
    """Append one message."""
    properties = others.pop("properties", b"")
    now_ms = others.pop("now_ms", NOW_MS)
    return store.appender.put(
        topic, queue_id, body, properties, now_ms - 5, others.pop("born_host", HOST), now_ms, **others
    )


def put_copy(store: MessageStore, message: StoredMessage, properties: bytes | None = None) -> PutResult:
    """Append a message of another store with its times and hosts, perhaps with other properties."""
    return store.appender.put(
        message.topic,
        message.queue_id,
        message.body,
        message.properties_bytes if properties is None else properties,
        message.born_timestamp_ms,
        message.born_host.to_bytes(),
        message.store_timestamp_ms,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        store_host=message.store_host.to_bytes(),
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def batch_of(messages: list[tuple[bytes, bytes]]) -> bytes:
    """A client's batch of bodies and properties."""
    return b"".join(
        pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 7, len(body))
        + body
        + pack(">h", len(properties))
        + properties
        for body, properties in messages
    )


def fill(
    store: MessageStore, count: int, seed: int = 1, *, now_ms: int = NOW_MS, batch: int = 7
) -> Iterator[PutResult]:
    """Append messages of all kinds, dispatching now and then; gives each result."""
    source = random.Random(seed)
    for number in range(count):
        yield put_any(store, source, number, now_ms + number * 10)
        if source.randrange(batch) == 0:
            store.dispatch()
    store.dispatch()


def put_any(store: MessageStore, source: random.Random, number: int, now_ms: int) -> PutResult:
    """Append a message of some kind, or a batch."""
    topic = source.choice(["Orders", "Payments", "Clicks", LONG_TOPIC, "SCHEDULE_TOPIC_XXXX"])
    queue_id = source.randrange(3)
    body = source.randbytes(source.choice([1, 20, 300]) + source.randrange(40))
    properties = properties_of(source, number)
    if store.config.lmq_enabled:
        properties += light_names(source)
    born_host = source.choice([HOST, HOST, V6_HOST])
    if store.batch_topics and source.randrange(2):
        result = put_in_batch_queue(store, source, queue_id, properties, now_ms)
    elif source.randrange(6) == 0:
        inner = [
            (source.randbytes(1 + source.randrange(30)), b"KEYS\x01b%d" % part)
            for part in range(source.randrange(1, 9))
        ]
        result = store.bulk.put_batch(topic, queue_id, batch_of(inner), properties, now_ms - 5, born_host, now_ms)
    else:
        result = store.appender.put(
            topic,
            queue_id,
            body,
            properties,
            now_ms - 5,
            born_host,
            now_ms,
            flag=source.randrange(-5, 5),
            sys_flag=source.choice([0, 0, 0, 0x4, 0x8, 0xC, 0x2, 0x301]),
            reconsume_times=source.randrange(3),
            store_host=source.choice([None, None, V6_HOST]),
        )
    assert result.status is PutStatus.PUT_OK
    return result


def properties_of(source: random.Random, number: int) -> bytes:
    """Encoded properties of some kind."""
    parts = []
    if source.randrange(4):
        parts.append(b"UNIQ_KEY\x01%032X" % source.getrandbits(120))
    if source.randrange(3):
        parts.append(b"TAGS\x01" + source.choice([b"TagA", b"TagB", "支付".encode()]))
    if source.randrange(2):
        parts.append(b"KEYS\x01" + source.choice([b"key%d" % number, b"a b  c", b"k1 " + "订单".encode()]))
    if source.randrange(5) == 0:
        parts.append(b"DELAY\x01%d" % source.randrange(4))
    parts = parts or [b"WAIT\x01true"]  # the peer's dump fails at a record without any
    return b"".join(part + b"\x02" for part in parts)


def put_in_batch_queue(
    store: MessageStore, source: random.Random, queue_id: int, properties: bytes, now_ms: int
) -> PutResult:
    """Append an inner batch, or a single message, to the topic with batch queues."""
    if source.randrange(3) == 0:
        return put(store, BATCH_TOPIC, queue_id, source.randbytes(40), properties=properties, now_ms=now_ms)
    inner = [(source.randbytes(1 + source.randrange(30)), b"TAGS\x01t\x02") for _ in range(source.randrange(1, 9))]
    return store.bulk.put_inner_batch(BATCH_TOPIC, queue_id, batch_of(inner), properties, now_ms - 5, HOST, now_ms)


def light_names(source: random.Random) -> bytes:
    """The property of a message for light queues (LMQ), or nothing."""
    names = [f"%LMQ%{source.randrange(5)}" for _ in range(source.randrange(4))]
    return f"INNER_MULTI_DISPATCH\x01{','.join(names)}\x02".encode() if names else b""


def read_all(store: MessageStore, topic: str | None = None) -> list[bytes]:
    """Each readable record, queue by queue, by as many reads as it takes."""
    found = []
    for name, ids in store.topics().items():
        for queue_id in ids if topic in (None, name) else []:
            at = store.min_offset(name, queue_id)
            while at < store.max_offset(name, queue_id):
                result = store.get(name, queue_id, at, 32)
                assert at < result.next_offset
                at = result.next_offset
                found += map(bytes, split_records(result.slices))
    return found


def cut_log(config: StoreConfig, physical_offset: int, *, keep_size: bool = True) -> None:
    """Have a log end at a physical offset, with zeros behind it, or with a file that is shorter."""
    start = physical_offset - physical_offset % config.commitlog_file_bytes
    path = Path(config.commitlog_path) / f"{start:020d}"
    os.truncate(path, physical_offset - start)
    if keep_size:
        os.truncate(path, config.commitlog_file_bytes)


def log_records(config: StoreConfig) -> list[tuple[int, bytes]]:
    """The records that stand in the files of a log, as far as sizes lead; no checksum is looked at."""
    found = []
    for path in sorted(Path(config.commitlog_path).iterdir()):
        data, start, at = path.read_bytes(), int(path.name), 0
        while at + 8 <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            if size == 0 or data[at + 4 : at + 8] == _BLANK_MAGIC:
                break
            found.append((start + at, data[at : at + size]))
            at += size
    return found


def start_without(config: StoreConfig, without: tuple[str, ...]) -> None:
    """Open a store that lacks some files and directories, or with ``abort`` was killed, and close it: the log stays."""
    root = Path(config.root)
    for name in without:
        if name == "abort":  # the broker was killed, that is
            (root / name).write_text("1")
        elif (root / name).is_dir():
            shutil.rmtree(root / name)
        else:
            (root / name).unlink()
    before = log_records(config)
    assert opened(config).shutdown()
    assert log_records(config) == before
