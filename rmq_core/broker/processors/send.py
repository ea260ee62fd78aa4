"""Send requests: messages, batches (codes 10, 310, 320), and messages that consumers send back (36).

Messages that come back are stored again for a retry, or as dead letters. Source: ``SendMessageProcessor``.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from rmq_core.broker.processors.durable_responder import DurableResponder
from rmq_core.broker.processors.lite_names import remove_lite_queue
from rmq_core.broker.processors.put_message import MessageWriter, WriteResult, max_retries
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.timer_admission import DelayLevels
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler, HandlerResponse
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand, encode_json
from rmq_core.remoting.requests import SendBackFields, SendMessage, SendMessageV2
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs import layout
from rmq_formats.codecs.paths import is_safe_topic
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage

_FIRST_LEVEL: Final = 3  # of a first retry: 10 s by default


class SendMessageProcessor:
    """Handler of SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        state: BrokerState,
        writer: MessageWriter,
        responder: DurableResponder,
        after_change: Callable[[HandlerResponse], HandlerResponse],
    ) -> None:
        """Wrap the response to a message that created its topic by ``after_change``."""
        self._state = state
        self._topics = state.topics
        self._times = state.stats.times
        self._page_cache = state.page_cache
        self._after_change = after_change
        self._writer = writer
        self._responder = responder
        self._id_prefix = state.store_host.to_bytes().hex().upper().encode()
        self._added_properties_json = encode_json(writer.added_properties)[1:-1]

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: partial(self._send, SendMessage),
            RequestCode.SEND_MESSAGE_V2: partial(self._send, SendMessageV2),
            RequestCode.SEND_BATCH_MESSAGE: partial(self._send, SendMessageV2),
        }

    def _send(self, kind: type[SendMessage], request: RemotingCommand, connection: Connection) -> HandlerResponse:
        """Store a message or a batch; the fields of V2 have short names."""
        topics, responder, fields = self._topics, self._responder, read_fields(request, kind)
        version_before, times = topics.version, self._times
        begin_s = times.now_s()
        stored = self._writer.store(request, connection, fields)
        if layout.PROPERTY_REPLY_TO_CLIENT in (fields.properties or ""):
            state = self._state
            state.reply_requests.add(fields.properties or "", fields.topic, state.rights.login(request), connection)
        response = self._respond(request, stored)
        if (end_s := times.now_s()) - begin_s > self._page_cache.timeout_s:
            self._page_cache.record_slow_append(begin_s, end_s)
        waits = stored.waits and responder.must_wait
        if not waits:
            times.end_put(begin_s)
        if topics.version is not version_before:  # a topic was created
            return self._after_change(responder.respond_when_durable(request, response, stored.result, waits=waits))
        if topics.unwritten and not responder.is_topic_persisted(fields.topic):
            return responder.respond_when_durable(request, response, stored.result, waits=waits)
        if not waits:
            return response

        def send_response(response: RemotingCommand) -> None:
            times.end_put(begin_s)
            connection.release_inflight(WAITING_BYTES)
            if not request.is_oneway:
                connection.send(response)

        connection.reserve_inflight(WAITING_BYTES)
        responder.run_when_durable(request, response, stored.result, send_response)
        return None

    def _respond(self, request: RemotingCommand, stored: WriteResult) -> RemotingCommand:
        """Return the response of a successful send; direct JSON is three times as fast as a dictionary."""
        result = stored.result
        is_batch = bool(result.physical_offsets)
        fields = b'{"msgId":"%b","queueId":"%d","queueOffset":"%d",%b%b%b%b}' % (
            result.msg_id.encode() if is_batch else b"%b%016X" % (self._id_prefix, result.physical_offset),
            stored.queue_id,
            result.queue_offset,
            self._added_properties_json,
            b',"transactionId":' + encode_json(stored.uniq_key) if stored.uniq_key else b"",
            b',"recallHandle":' + encode_json(stored.recall_handle) if stored.recall_handle else b"",
            b',"batchUniqId":' + encode_json(stored.batch_key) if stored.batch_key else b"",
        )
        return request.response(ext_fields=fields)


class SendBackProcessor:
    """Handler of CONSUMER_SEND_MSG_BACK."""

    def __init__(self, state: BrokerState, levels: DelayLevels, responder: DurableResponder) -> None:
        self._state = state
        self._levels = levels
        self._responder = responder

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, request: RemotingCommand, _: Connection) -> HandlerResponse:
        """Store a failed message again (CONSUMER_SEND_MSG_BACK, 36); respond when durable, unlike the original."""
        fields = read_fields(request, SendBackFields)
        state = self._state
        group = state.groups.find(fields.group, state.config.auto_create_subscription_group)
        if group is None:
            problem = f"subscription group not exist, {fields.group}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
        if not state.config.broker_permission & names.PERM_WRITE:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] sending message is forbidden")
        if group.retry_queue_nums <= 0:
            return request.response()
        retry_topic = names.retry_topic(fields.group)
        if state.groups.is_lmq_group(fields.group) and retry_topic not in state.topics.table:
            if not is_safe_topic(retry_topic):  # the client made up the group's name
                raise ResponseError(ResponseCode.SYSTEM_ERROR, f"there cannot be a topic {retry_topic}")
            if state.topics.is_full:
                raise ResponseError(ResponseCode.SYSTEM_ERROR, f"too many topics to make {retry_topic}")
        topic = state.topics.get_or_create(retry_topic, group.retry_queue_nums, 2 * fields.unit_mode)
        if not topic.perm & names.PERM_WRITE:
            problem = f"the topic[{topic.topic_name}] sending message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, problem)
        message = state.store.message(fields.offset)
        if message is None or not _matches_msg_id(message, fields.origin_msg_id):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {fields.offset}")
        result = self._put(message, fields, group, max_retries(request, fields, group))
        if self._responder.must_wait or state.topics.unwritten:
            return self._responder.respond_when_durable(request, request.response(), result)
        return request.response()

    def _put(
        self, message: StoredMessage, fields: SendBackFields, group: SubscriptionGroupConfig, most_retries: int
    ) -> PutResult:
        state = self._state
        if message.sys_flag & layout.FLAG_INNER_BATCH:  # consumers send back single messages. ``checkInnerBatch``
            raise ResponseError(ResponseCode.SYSTEM_ERROR, PutStatus.MESSAGE_ILLEGAL.value)
        properties = message.properties
        properties.setdefault(layout.PROPERTY_RETRY_TOPIC, message.topic)
        properties.setdefault(layout.PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
        properties[layout.PROPERTY_WAIT] = "false"
        if message.reconsume_times >= most_retries or fields.delay_level < 0:
            topic, queue_id = state.topics.get_or_create(names.dlq_topic(fields.group), 1).topic_name, 0
            properties[layout.PROPERTY_DELAY] = "0"
            remove_lite_queue(properties)
        else:
            level = fields.delay_level or _FIRST_LEVEL + message.reconsume_times
            topic, queue_id = names.retry_topic(fields.group), random.randrange(group.retry_queue_nums)
            topic, queue_id = self._levels.redirect(topic, queue_id, properties, level)
        result = state.put_copy(
            message, (topic, queue_id), encode_properties(properties), state.clock_ms(), added_tries=1
        )
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, result.status.value)
        state.stats.count(stats.SNDBCK_PUT_NUMS, f"{properties[layout.PROPERTY_RETRY_TOPIC]}@{fields.group}", 1)
        return result


def _matches_msg_id(message: StoredMessage, msg_id: str | None) -> bool:
    """Return whether a message has the consumer's id: a log that lost its tail may have another one there."""
    return not msg_id or message.uniq_key is None or msg_id in (message.uniq_key, message.msg_id)
