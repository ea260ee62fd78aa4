"""``rmq dump STORE --unqueued``: the messages of a store that no queue has, each with the reason."""

from collections.abc import Iterator
from itertools import islice

from rmq_cli.dump import json_lines, text_lines
from rmq_cli.store_path import ClassifiedPath
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.read.query import Include
from rmq_formats.read.unqueued import UNQUEUED_TEXTS, UnqueuedReason, UnqueuedReasons, refuse_log_alone
from rmq_formats.store import Store


def unqueued_lines(
    place: ClassifiedPath, *, as_json: bool, topic: str | None, begin: int, limit: int | None, with_body: bool
) -> Iterator[bytes]:
    """Yield the lines of the messages, in the order of the log.

    Args:
        as_json: one object a line, with the key ``reason`` behind those of a record.
        begin: physical offset of the first record.
        limit: of messages; None is no limit.

    Raises:
        StoreLayoutError: the store has no queues, so that nothing tells.
    """
    refuse_log_alone(place.files)
    reasons = UnqueuedReasons(place.files)
    messages = Store(place.path).messages(topic, from_physical_offset=begin, include=Include.UNQUEUED)
    for message in islice(messages, limit):
        reason = reasons.of((message.topic, message.queue_id), message.physical_offset)
        yield (_json_line if as_json else _text)(message, reason, with_body)


def _json_line(message: StoredMessage, reason: UnqueuedReason, with_body: bool) -> bytes:
    line = json_lines.message_line(message, with_body=with_body)
    return line.removesuffix(b"}\n") + b',"reason":"%b"}\n' % reason.encode()


def _text(message: StoredMessage, reason: UnqueuedReason, with_body: bool) -> bytes:
    head, _, rest = text_lines.record_text(message, with_body=with_body).partition("\n")
    return f"{head}  {reason}: {UNQUEUED_TEXTS[reason]}\n{rest}".encode("utf-8", "replace")
