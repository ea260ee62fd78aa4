"""Checks the checkpoint and the config files against the log and the queues."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.config_json import (
    check_consumer_offsets,
    check_delay_offsets,
    loads,
    offsets_document,
)
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES, CHECKPOINT_SIXTH_END, CHECKPOINT_USED_BYTES, SCHEDULE_TOPIC
from rmq_formats.errors import DecodeError
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding

CONSUMER_OFFSETS: Final = "consumerOffset.json"
LIGHT_CONSUMER_OFFSETS: Final = "lmqConsumerOffset.json"  # instead of it, where the broker has light queues (LMQ)
JSON_FILES: Final = (
    "topics.json", "subscriptionGroup.json", CONSUMER_OFFSETS, LIGHT_CONSUMER_OFFSETS, "delayOffset.json",
    "consumerFilter.json", "consumerOrderInfo.json", "messageRequestMode.json", "topicQueueMapping.json",
    "timermetrics", "transactionMetrics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Queue offset up to which a consumer group or a delay level has read, by a config file.

    Attributes:
        queue_offset: the next offset to be read.
        group: the consumer group; None for the broker's own delivery of delayed messages.
    """

    topic: str
    queue_id: int
    queue_offset: int
    group: str | None

    @property
    def owner(self) -> str:
        """The consumer group or the delay level, in words."""
        return f"delay level {self.queue_id + 1}" if self.group is None else f"group {self.group}"

    def finding(self, end_offset: int, path: str) -> Finding:
        """Make the finding for a queue that ends at ``end_offset``, before the claimed offset."""
        kind = finding_kinds.DELAY_OFFSET if self.group is None else finding_kinds.CONSUMER_OFFSET
        return Finding(
            kind, f"{self.owner} is {self.queue_offset - end_offset} messages beyond the queue's end", path,
            topic=self.topic, queue_id=self.queue_id, queue_offset=self.queue_offset,
            expected=f"at most {end_offset}", actual=str(self.queue_offset),
        )  # fmt: skip


def check_checkpoint(
    data: bytes | None, size_bytes: int, path: str, latest_ms: int, log_end: int, *, has_sixth: bool
) -> Iterator[Finding]:
    """Check a checkpoint.

    Args:
        data: the file's first CHECKPOINT_FILE_BYTES; None if there is none.
        latest_ms: the latest store timestamp in the log; -1 in an empty log.
        log_end: one past the log's last byte, the filler of its last file included.
        has_sixth: whether the store is one of a broker that may have written the sixth number, of 5.5 or later.
    """
    if data is None:
        yield Finding(finding_kinds.CHECKPOINT_MISSING, "there is no checkpoint", path)
        return
    if size_bytes != CHECKPOINT_FILE_BYTES:
        yield Finding(
            finding_kinds.CHECKPOINT_UNREADABLE, "file of another size", path, expected=str(CHECKPOINT_FILE_BYTES),
            actual=str(size_bytes),
        )  # fmt: skip
    if len(data) < CHECKPOINT_USED_BYTES:
        return
    checkpoint = Checkpoint.decode(data)
    for name, value, limit in (
        ("physicMsgTimestamp", checkpoint.physic_msg_timestamp_ms, latest_ms),
        ("logicsMsgTimestamp", checkpoint.logics_msg_timestamp_ms, latest_ms),
        ("indexMsgTimestamp", checkpoint.index_msg_timestamp_ms, latest_ms),
        # A slave may lag behind what its master has flushed.
        ("masterFlushedOffset", checkpoint.master_flushed_offset, checkpoint.master_flushed_offset),
        ("confirmPhyOffset", checkpoint.confirm_physical_offset, log_end),
        ("logicsPhysicalOffset", checkpoint.logics_physical_offset * has_sixth, log_end),
    ):
        if value < 0:
            yield Finding(finding_kinds.CHECKPOINT_UNREADABLE, f"{name} is negative", path, actual=str(value))
        elif value > max(limit, 0):
            what = "the log's last store timestamp" if name.endswith("Timestamp") else "the end of the log"
            yield Finding(
                finding_kinds.CHECKPOINT_LATER, f"{name} is beyond {what}", path, expected=f"at most {max(limit, 0)}",
                actual=str(value),
            )  # fmt: skip
    if any(data[CHECKPOINT_SIXTH_END if has_sixth else CHECKPOINT_USED_BYTES :]):
        yield Finding(finding_kinds.CHECKPOINT_TRAILING, "bytes after the checkpoint's numbers", path)


def check_index_timestamp(data: bytes | None, path: str, index_ends_ms: Sequence[int]) -> Iterator[Finding]:
    """Check that the checkpoint covers all full IndexFiles.

    The checkpoint has the end of the last full IndexFile. An abnormal start deletes files that end later, which is
    meant for the last, still open one. The other times may well be too early: recovery only takes longer.
    Source: ``IndexService#load``, ``IndexService#flush``.

    Args:
        data: the checkpoint; None if there is none.
        index_ends_ms: end timestamp of each IndexFile, oldest first.
    """
    if data is None or len(data) < CHECKPOINT_USED_BYTES:
        return
    checkpoint_ms = Checkpoint.decode(data).index_msg_timestamp_ms
    later = [end_ms for end_ms in index_ends_ms[:-1] if end_ms > checkpoint_ms]
    if later:
        yield Finding(
            finding_kinds.CHECKPOINT_EARLIER, f"{len(later)} full IndexFiles end after indexMsgTimestamp", path,
            expected=str(later[-1]), actual=str(checkpoint_ms),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A config file or its ``.bak``.

    Attributes:
        data: what is in it; None if it is not there or cannot be read.
        fault: why a broker does not load it; None if it does or there is none.
    """

    data: bytes | None
    fault: str | None

    @property
    def exists(self) -> bool:
        """True if the file exists, readable or not."""
        return self.data is not None or self.fault is not None


def check_config_file(path: str, config: ConfigFile, backup: ConfigFile) -> Iterator[Finding]:
    """Check that a broker can load a config file, or else its ``.bak``.

    Source: ``ConfigManager#load``.
    """
    if config.fault is None and (config.exists or backup.fault is None):
        return
    fault = config.fault or "it is not there"
    if not backup.exists:
        yield Finding(finding_kinds.CONFIG_LOST, f"{fault}; and there is no .bak", path)
    elif backup.fault is None:
        yield Finding(finding_kinds.CONFIG_UNPARSABLE, fault, path)
    else:
        yield Finding(finding_kinds.CONFIG_LOST, f"{fault}; nor is its .bak taken ({backup.fault})", path)


def select_config_data(config: ConfigFile, backup: ConfigFile) -> bytes | None:
    """Return the bytes that a broker loads: those of a config file or of its ``.bak``; None if neither is readable.

    A broker that is killed while it writes the two files leaves only the ``.bak``, and loads that when it starts.
    Source: ``MixAll#string2File``.
    """
    if config.data is None or (backup.data is not None and config.fault is not None):
        return backup.data
    return config.data


def config_fault(path: str, data: bytes) -> str | None:
    """Return why a broker does not load a config file; None if it does."""
    fault = _json_fault(data)
    if fault is not None:
        return fault
    name, text = path.rpartition("/")[2], data.decode("utf-8", "replace")
    if name in _OFFSET_CHECKS:
        try:
            _OFFSET_CHECKS[name](offsets_document(text))
        except DecodeError as error:
            return str(error)
        return None
    value = loads(text)
    forms = _FORMS.get(name, {})
    faults = (_member_fault(value, member, is_valid) for member, is_valid in forms.items())
    return next((fault for fault in faults if fault is not None), None)


def _member_fault(value: object, member: str, is_valid: Callable[[str, object], bool]) -> str | None:
    """Return what is wrong with a member of a config file; None if nothing is, or there is no such member."""
    entries = value.get(member) if isinstance(value, dict) else None
    if entries is None:
        return None
    if not isinstance(entries, dict):
        return f"{member} is not a JSON object"
    bad = (key for key, item in entries.items() if not is_valid(key, item))
    return next((f"{member} has a bad value at {key}" for key in bad), None)


def _json_fault(data: bytes) -> str | None:
    if not data.strip(b" \t\r\n\0"):
        return "the file is empty"
    try:
        value = loads(data.decode("utf-8", "replace"))
    except DecodeError as error:
        return str(error)
    return None if isinstance(value, dict) else "not a JSON object"


def _is_object(_key: str, value: object) -> bool:
    return value is None or isinstance(value, dict)


_QUEUE_ID: Final = re.compile(r"[0-9]{1,10}")
_MAX_LONG: Final = (1 << 63) - 1
# By config file: the members that a broker needs, and the type of their values.
_FORMS: Final[Mapping[str, Mapping[str, Callable[[str, object], bool]]]] = {
    "topics.json": {"topicConfigTable": _is_object},
    "subscriptionGroup.json": {"subscriptionGroupTable": _is_object},
}
_OFFSET_CHECKS: Final[Mapping[str, Callable[[Mapping[str, object]], None]]] = {
    CONSUMER_OFFSETS: check_consumer_offsets,
    LIGHT_CONSUMER_OFFSETS: check_consumer_offsets,
    "delayOffset.json": check_delay_offsets,
}


def parse_consumer_offsets(text: str) -> Iterator[CommittedOffset]:
    """Parse the offsets in a ``consumerOffset.json`` or ``lmqConsumerOffset.json``; other forms are passed over."""
    for name, offset in _table(text, "lmqOffsetTable").items():
        topic, separator, group = name.partition("@")
        if separator and _is_long(offset):
            yield CommittedOffset(topic, 0, offset, group)
    for name, queues in _table(text).items():
        topic, separator, group = name.partition("@")
        if separator and isinstance(queues, Mapping):
            for queue_id, offset in queues.items():
                if _QUEUE_ID.fullmatch(queue_id) and _is_long(offset):
                    yield CommittedOffset(topic, int(queue_id), offset, group)


def parse_delay_offsets(text: str) -> Iterator[CommittedOffset]:
    """Parse the offsets in a ``delayOffset.json``: level 1 is queue 0."""
    for level, offset in _table(text).items():
        if _QUEUE_ID.fullmatch(level) and int(level) > 0 and _is_long(offset):
            yield CommittedOffset(SCHEDULE_TOPIC, int(level) - 1, offset, None)


def _is_long(value: object) -> TypeGuard[int]:
    return type(value) is int and -_MAX_LONG <= value <= _MAX_LONG


def _table(text: str, member: str = "offsetTable") -> Mapping[str, object]:
    try:
        table = offsets_document(text).get(member)
    except DecodeError:
        return {}
    return table if isinstance(table, dict) else {}
