"""Recall of timer messages (request code 370), by the handle in the answer to their send.

Source: ``RecallMessageProcessor``, ``SendMessageProcessor#attachRecallHandle``.
"""

from collections.abc import Mapping
from typing import Final

from rmq_core.broker.processors.durable_responder import DurableResponder
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.timer.records import delete_key
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.recall_handle import RecallHandle
from rmq_core.remoting.requests import RecallMessage
from rmq_core.store.results import PutStatus
from rmq_formats.codecs import layout
from rmq_formats.codecs.index import AUTO
from rmq_formats.codecs.properties import encode_properties, parse_decimal
from rmq_formats.codecs.timer import PROPERTY_DELETED_KEY, PROPERTY_OUT_MS

_UNAVAILABLE: Final = "recall failed, broker service not available"


def encode_recall_handle(properties: Mapping[str, str], broker_name: str) -> str | None:
    """Return the handle for a recall of a message; None for a retry or other than a timer message."""
    due_ms, topic = parse_decimal(properties.get(PROPERTY_OUT_MS), 0), properties.get(layout.PROPERTY_REAL_TOPIC)
    uniq_key = properties.get(layout.PROPERTY_UNIQ_KEY)
    if not due_ms or not topic or not uniq_key or topic.startswith(names.RETRY_PREFIX):
        return None
    return RecallHandle(topic, broker_name, due_ms + 1, uniq_key).encode()


class RecallMessageProcessor:
    """Handler of RECALL_MESSAGE requests."""

    def __init__(self, state: BrokerState, responder: DurableResponder) -> None:
        self._state = state
        self._responder = responder

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, request: RemotingCommand, connection: Connection) -> HandlerResponse:
        """Store a recall, due at the same time as the waiting message (RECALL_MESSAGE, 370)."""
        state = self._state
        fields = read_fields(request, RecallMessage)
        handle = self._parse_handle(fields)
        now_ms = state.clock_ms()
        properties = {
            layout.PROPERTY_TAGS: "_RECALL_TAG_",
            PROPERTY_DELETED_KEY: self._deleted_key(handle),
            layout.PROPERTY_UNIQ_KEY: handle.uniq_key,
            layout.PROPERTY_TIMER_DELIVER_MS: str(handle.due_ms),
            "BORN_TIMESTAMP": str(now_ms),
            layout.PROPERTY_PRODUCER_GROUP: fields.producer_group or "",
        }
        topic, queue_id = state.timers.redirect(handle.topic, 0, properties)
        result = state.store.appender.put(
            topic,
            queue_id,
            b"0",
            encode_properties({name: text for name, text in properties.items() if text}),
            now_ms,
            connection.remote_host,
            now_ms,
        )
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
        state.stats.count_messages(stats.PUT, topic, 1, result.size)
        response = request.response(
            ext_fields={layout.PROPERTY_MSG_REGION: state.config.region_id, "msgId": handle.uniq_key}
        )
        if self._responder.must_wait:
            return self._responder.respond_when_durable(request, response, result)
        return response

    def _deleted_key(self, handle: RecallHandle) -> str:
        """Return the message's key in a recall, in the format of the brokers that wrote this store."""
        setting = self._state.config.append_topic_for_timer_delete_key
        has_topic = not self._state.store.is_from_5_4 if setting == AUTO else setting == "true"
        return delete_key(handle.topic, handle.uniq_key) if has_topic else handle.uniq_key

    def _parse_handle(self, fields: RecallMessage) -> RecallHandle:
        state, config = self._state, self._state.config
        if not config.recall_message_enable:
            raise ResponseError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not config.broker_permission & names.PERM_WRITE:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
        if fields.topic not in state.topics.table:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{fields.topic}] not exist")
        handle = RecallHandle.decode(fields.recall_handle)
        problem = None
        if handle.topic != fields.topic:
            problem = "recall failed, topic not match"
        elif handle.broker_name != config.broker_name:
            problem = _UNAVAILABLE
        elif not 0 < handle.due_ms - state.clock_ms() < config.timer_max_delay_sec * 1000:
            problem = "recall failed, timestamp invalid"
        if problem is not None:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, problem)
        return handle
