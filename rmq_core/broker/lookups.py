"""Single messages: by id and by key (codes 12, 33).

Source: ``QueryMessageProcessor``.
"""

from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryMessage, ViewMessage

_UNIQUE_KEY: Final = "_UNIQUE_KEY_QUERY"
_MOST_UNIQUE: Final = 32


class Lookups:
    """Handles requests for single messages."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """The table of handlers."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_MESSAGE (12)."""
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
        return request.response(ext_fields=fields, body=b"".join(found.records))

    def view(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """VIEW_MESSAGE_BY_ID (33)."""
        asked = read_fields(request, ViewMessage)
        record = self._state.store.record(asked.offset)
        if record is None:
            return request.response(
                int(ResponseCode.SYSTEM_ERROR), f"can not find message by the offset, {asked.offset}"
            )
        return request.response(body=record)
