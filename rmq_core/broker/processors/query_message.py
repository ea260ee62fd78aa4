"""Message lookup by key and by physical offset (request codes 12, 33).

Source: ``QueryMessageProcessor``.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryMessage, ViewMessage

_UNIQUE_KEY: Final = "_UNIQUE_KEY_QUERY"
_MOST_UNIQUE: Final = 32
_MOST_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)  # the newest of them that fit into a frame with its header


class Lookups:
    """Handles QUERY_MESSAGE and VIEW_MESSAGE_BY_ID: messages by key, and by place."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_MESSAGE (12): a topic's messages with a key, or with a UNIQ_KEY, from the Index."""
        asked = read_fields(request, QueryMessage)
        unique = request.ext_fields.get(_UNIQUE_KEY, "").lower() == "true"
        most = _MOST_UNIQUE if unique else asked.max_num
        found = self._state.store.query(
            asked.topic, asked.key, most, asked.begin_timestamp, asked.end_timestamp, unique=unique
        )
        fields = {
            "indexLastUpdateTimestamp": str(found.last_update_timestamp_ms),
            "indexLastUpdatePhyoffset": str(found.last_update_physical_offset),
        }
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return request.response(int(ResponseCode.QUERY_NOT_FOUND), remark, fields)
        return request.response(ext_fields=fields, body=b"".join(_fitting(found.records)))

    def view(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """VIEW_MESSAGE_BY_ID (33): the record at a physical offset."""
        asked = read_fields(request, ViewMessage)
        record = self._state.store.record(asked.offset)
        if record is None:
            return request.response(
                int(ResponseCode.SYSTEM_ERROR), f"can not find message by the offset, {asked.offset}"
            )
        return request.response(body=record)


def _fitting(records: list[memoryview]) -> Iterator[memoryview]:
    """The first records, which are the newest, as far as they fit into one answer."""
    sizes = accumulate(map(len, records))
    return (record for record, end in zip(records, sizes, strict=True) if end <= _MOST_BYTES)
