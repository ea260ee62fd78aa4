"""Helpers of the repair's tests: damage, and what must be left of a log after it."""

from collections.abc import Iterator
from pathlib import Path

from rmq_formats.codecs.paths import parse_segment_name
from rmq_formats.codecs.record import StoredMessage
from rmq_offline.repair.filler import TOPIC
from rmq_offline.verify.commitlog import topic_fault
from tests.support.oracles.commitlog_walk import Frame, walk
from tests.support.stores.verified_stores import patch


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def sound_records(store: Path, file_bytes: int) -> dict[int, int]:
    """Physical offset and body CRC of each record that a repair must leave as it is."""
    return {message.physical_offset: message.body_crc for message in sound_messages(store, file_bytes)}


def sound_messages(store: Path, file_bytes: int) -> Iterator[StoredMessage]:
    """The records that a repair must leave as they are, by the plain-Python walk."""
    for path in sorted((store / "commitlog").iterdir()):
        start = parse_segment_name(path.name)
        data = path.read_bytes()
        if start is None or start % file_bytes:
            continue
        for item in walk(data[:file_bytes].ljust(file_bytes, b"\0"), start):
            if isinstance(item, Frame) and item.position + item.size <= len(data):
                message = item.decode()
                has_topic = (
                    topic_fault(message.topic.encode()) is None and "\N{REPLACEMENT CHARACTER}" not in message.topic
                )
                if has_topic and is_text(message.properties_bytes):
                    yield message


def is_written_by_repair(topic: str, sys_flag: int) -> bool:
    """Whether a record is a filler or a placeholder."""
    return TOPIC.startswith(topic) or sys_flag == 0x3C1


def remove_claims(store: Path) -> None:
    """Forget what groups have consumed: with messages lost, some would be ahead of their queues."""
    for name in ("consumerOffset.json", "delayOffset.json"):
        for path in (store / "config").glob(f"{name}*"):
            path.unlink()


def many_faults(store: Path) -> None:
    """Damage a store of ``sound_store`` in many places at once."""
    files = sorted((store / "commitlog").iterdir())
    patch(files[0], 2000, b"\x5a" * 700)
    patch(files[1], 3000, b"\xa5" * 1096)
    files[2].unlink()
    files[3].write_bytes(files[3].read_bytes()[:2500])
    last = len(files[-1].read_bytes().rstrip(b"\0"))
    patch(files[-1], last, b"torn" * 9)
    (store / "commitlog" / "notes.txt").write_text("mine\n")
    (store / "checkpoint").write_bytes(b"\0" * 9)
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text("{")
    (store / "config" / "topics.json.bak").write_text('{"topicConfigTable":{"Orders":{},"Clicks":{}}}')
