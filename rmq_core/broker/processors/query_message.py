"""Message lookup by key and by physical offset (request codes 12, 33).

Source: ``QueryMessageProcessor``.
"""

from itertools import accumulate
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.remoting.codes import UNIQUE_KEY_QUERY, RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryMessage, ViewMessage
from rmq_core.store.results import KeyKind
from rmq_formats.codecs.layout import PROPERTY_REAL_TOPIC
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.topics import TIMER_TOPIC

_WAITING_TOPICS: Final = (names.SCHEDULE_TOPIC, TIMER_TOPIC, names.HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC)
_KINDS: Final = {"U": KeyKind.UNIQUE, "T": KeyKind.TAGS}  # sent by clients from 5.4 on
_MOST_UNIQUE: Final = 32
_MOST_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)  # of the newest records that fit into a frame with its header


class QueryMessageProcessor:
    """Handler of QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return a topic's messages with a key, a UNIQ_KEY or TAGS, from the Index (QUERY_MESSAGE, 12)."""
        fields = read_fields(request, QueryMessage)
        unique = request.ext_fields.get(UNIQUE_KEY_QUERY, "").lower() == "true"
        kind = KeyKind.UNIQUE if unique else _KINDS.get(fields.index_type or "", KeyKind.ANY)
        limit = _MOST_UNIQUE if kind is KeyKind.UNIQUE else fields.max_num
        result = self._state.store.query(
            fields.topic, fields.key, limit, fields.begin_timestamp, fields.end_timestamp, kind=kind
        )
        ext_fields = {
            "indexLastUpdateTimestamp": str(result.last_update_timestamp_ms),
            "indexLastUpdatePhyoffset": str(result.last_update_physical_offset),
        }
        if not result.records:
            remark = "can not find message, maybe time range not correct"
            return request.response(int(ResponseCode.QUERY_NOT_FOUND), remark, ext_fields)
        return request.response(ext_fields=ext_fields, body=b"".join(_select_fitting(result.records)))

    def view(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the record at a physical offset, if it is of the request's topic (VIEW_MESSAGE_BY_ID, 33)."""
        fields = read_fields(request, ViewMessage)
        record = self._state.store.record(fields.offset)
        if record is None:
            return request.response(
                int(ResponseCode.SYSTEM_ERROR), f"can not find message by the offset, {fields.offset}"
            )
        if (fields.topic or "").strip() and not _is_of_topic(
            self._state.store.message(fields.offset), fields.topic or ""
        ):
            return request.response(int(ResponseCode.NO_PERMISSION), "The topic does not match the message")
        return request.response(body=record)


def _is_of_topic(message: StoredMessage | None, topic: str) -> bool:
    """Return whether a message belongs to a topic or waits for it. Source: ``#matchesRequestTopic`` of 5.5.1."""
    if message is not None and message.topic in _WAITING_TOPICS:
        return message.properties.get(PROPERTY_REAL_TOPIC) == topic
    return message is not None and message.topic == topic


def _select_fitting(records: list[memoryview]) -> list[memoryview]:
    """Return the newest records that fit into one response, oldest first.

    Source: ``DefaultMessageStore#queryMessage``, which sorts its results by physical offset.
    """
    sizes = accumulate(map(len, records))
    return [record for record, end in zip(records, sizes, strict=True) if end <= _MOST_BYTES][::-1]
