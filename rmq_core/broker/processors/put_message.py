"""Storage of client messages: topics, added properties, redirection of delayed, timer, half and retried messages.

Source: ``SendMessageProcessor``, ``AbstractSendMessageProcessor#msgCheck``.
"""

import random
import re
from typing import Final, NamedTuple

from rmq_core.broker.processors.lite_names import add_lite_queue, check_no_lite_queue
from rmq_core.broker.processors.recall import encode_recall_handle
from rmq_core.broker.state import HELP, BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.timer_admission import DelayLevels, remove_timer_properties
from rmq_core.broker.tables.topics import has_batch_queues, is_lite
from rmq_core.broker.transaction.half import is_transaction, redirect_to_half
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.codes import ResponseCode, Version
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import SendBackFields, SendMessage
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_core.store.commitlog.lmq_offsets import decode_lmq_names, is_lmq
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs import layout
from rmq_formats.codecs.batch_consumequeue import count_messages
from rmq_formats.codecs.properties import decode_properties, encode_properties, parse_decimal
from rmq_formats.codecs.topics import LITE_PREFIX

_new = tuple.__new__  # creates a NamedTuple without its constructor
_OK: Final = PutStatus.PUT_OK
_SEPARATOR: Final = bytes([layout.PROPERTY_SEPARATOR])
_TIMER_PROPERTIES: Final = (
    layout.PROPERTY_TIMER_DELAY_SEC,
    layout.PROPERTY_TIMER_DELAY_MS,
    layout.PROPERTY_TIMER_DELIVER_MS,
)
_PRIORITY_EXCLUDING_PROPERTIES: Final = (layout.PROPERTY_SHARDING_KEY, *_TIMER_PROPERTIES)
_PRIORITY_DIGITS: Final = 9
# Properties that need handling; without them the client's text goes into the record unchanged.
# The text gets a leading separator, as an expression that begins with a fixed character is much faster.
_SPECIAL_PROPERTY: Final = re.compile(
    "\x02(?:DELAY|T(?:RAN_MSG|IMER_DELAY_SEC|IMER_DELAY_MS|IMER_DELIVER_MS|RACE_ON)|POP_CK|MSG_REGION|CLUSTER"
    "|WAIT\x01(?!true)|UNIQ_KEY\x01(?:\x02|$)|__RMQ[.]TRANSIENT|_SYS_MSG_PRIORITY_)"
)
_LMQ_NAMES: Final = f"\x02{layout.PROPERTY_INNER_MULTI_DISPATCH}\x01"
_SHOWN_CHARS: Final = 60
_LMQ_OFFSET_BYTES: Final = 11  # an offset below ten billion, and a comma
_ADDED_BYTES: Final = 1024  # of properties that the broker adds: region, trace, unique key, target of a delayed message
_TOO_MANY_LMQS: Final = (
    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
    "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
)
_TOO_MANY_LITE_TOPICS: Final = "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."
_UNIQ_KEY: Final = re.compile("\x02UNIQ_KEY\x01([^\x02]+)")
_ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit {}B, "
    "msg properties length limit 32KB."
)
_INNER_BATCH_PROPERTY: Final = re.compile(f"\x02(?:{layout.PROPERTY_INNER_NUM}|{layout.PROPERTY_INNER_BASE})\x01")
_INNER_BATCH_NAMES: Final = tuple(
    f"{name}\x01".encode() for name in (layout.PROPERTY_INNER_NUM, layout.PROPERTY_INNER_BASE)
)
_NOT_AVAILABLE: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
    "messages are put to the slave, message store has been shut down, etc. ({})"
)


class WriteResult(NamedTuple):
    """Result of storing a client's message.

    Attributes:
        uniq_key: id from the producer or the broker; None for a batch without one.
        waits: the sender waits for flush and replication.
        recall_handle: handle for a recall of a timer message; None for other messages.
        batch_key: unique key of an inner batch, which the sender uses as the id of each message; else None.
    """

    queue_id: int
    result: PutResult
    uniq_key: str | None
    waits: bool
    recall_handle: str | None = None
    batch_key: str | None = None


class MessageWriter:
    """Writer of client messages; ``added_properties`` are added to each message and returned to the sender."""

    def __init__(self, state: BrokerState, levels: DelayLevels) -> None:
        self._state = state
        self._levels = levels
        self._appender = state.store.appender
        self._lmq_enabled = state.store.config.lmq_enabled
        config = state.config
        self.added_properties = {
            layout.PROPERTY_MSG_REGION: config.region_id,
            layout.PROPERTY_TRACE_SWITCH: str(config.trace_on).lower(),
        }
        self._broker_properties = self.added_properties | {layout.PROPERTY_CLUSTER: config.broker_cluster_name}
        self._encoded_broker_properties = encode_properties(self._broker_properties)
        self._uniq_keys = UniqKeys()

    def store(self, request: RemotingCommand, connection: Connection, fields: SendMessage) -> WriteResult:
        state, name = self._state, fields.topic
        topic = state.topics.table.get(name)
        if topic is None or name in names.NOT_FOR_CLIENTS:
            topic = self._create_topic(fields)
        if topic.order and not state.config.broker_permission & names.PERM_WRITE:
            problem = f"the broker[{state.address}] sending message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, problem)
        queue_id = fields.queue_id
        if queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums:
            problem = f"request queueId[{queue_id}] is illegal, {topic} Producer: {connection.remote_address}"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        if queue_id < 0:
            queue_id = random.randrange(max(topic.write_queue_nums, 1))
        sys_flag = fields.sys_flag
        is_inner_batch = bool(sys_flag & layout.FLAG_INNER_BATCH)
        if topic.attributes and has_batch_queues(topic):
            is_inner_batch = self._is_inner_batch(request, fields)
        elif is_inner_batch:  # Source: ``HookUtils#checkInnerBatch``
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal_remark())
        original_fields = fields
        if topic.attributes and is_lite(topic):
            fields = add_lite_queue(fields, request.body, lmq_enabled=self._lmq_enabled)
        if topic.topic_filter_type == "MULTI_TAG":
            sys_flag |= layout.FLAG_MULTI_TAGS
        properties_text = "\x02" + (fields.properties or "")
        if self._lmq_enabled and _LMQ_NAMES in properties_text:
            self._check_lmq_names(fields, may_be_child=fields is not original_fields)
        if is_inner_batch:
            write_result = self._put_inner_batch(request, connection, fields, queue_id, sys_flag)
        elif fields.batch:
            write_result = self._put_batch(request, connection, fields, queue_id, sys_flag)
        elif _SPECIAL_PROPERTY.search(properties_text) is None and not name.startswith(names.RETRY_PREFIX):
            uniq_key_match = _UNIQ_KEY.search(properties_text)
            properties = properties_text[1:].encode("utf-8", "replace")
            if properties and properties[-1] != layout.PROPERTY_SEPARATOR:
                properties += _SEPARATOR
            uniq_key = uniq_key_match[1] if uniq_key_match else self._uniq_keys.next(state.clock_ms())
            if not uniq_key_match:
                properties += encode_properties({layout.PROPERTY_UNIQ_KEY: uniq_key})
            result = self._appender.put(
                name,
                queue_id,
                request.body,
                properties + self._encoded_broker_properties,
                fields.born_timestamp,
                connection.remote_host,
                state.clock_ms(),
                flag=fields.flag,
                sys_flag=sys_flag,
                reconsume_times=fields.reconsume_times or 0,
            )
            write_result = _new(WriteResult, (queue_id, result, uniq_key, True, None, None))
        else:
            write_result = self._put_special(request, connection, fields, queue_id, sys_flag)
        result = write_result.result
        if result.status is not _OK:
            state.stats.times.failed_puts += 1
            raise self.error_response(result.status)
        state.stats.count_messages(stats.PUT, name, result.message_count, result.size)
        return write_result

    def _create_topic(self, fields: SendMessage) -> TopicConfig:
        """Create the topic of a message. Raises ResponseError without permission, or for a reserved name."""
        topics = self._state.topics
        lmq = topics.get(fields.topic) if is_lmq(fields.topic) else None
        if lmq is not None:
            check_no_lite_queue(fields.topic, [])
            self._reserve_lmqs([fields.topic])
            return lmq
        problem = names.find_topic_name_problem(fields.topic)
        if problem is not None:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        if fields.topic in names.NOT_FOR_CLIENTS:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{fields.topic}] is forbidden.")
        is_retry = fields.topic.startswith(names.RETRY_PREFIX)
        sys_flag = (2 if is_retry else 1) if fields.unit_mode else 0
        new_topic = topics.create_topic_in_send_message(
            fields.topic,
            fields.default_topic,
            fields.default_topic_queue_nums,
            sys_flag,
            self._state.config.auto_create_topic_enable,
        )
        if new_topic is None and is_retry and not topics.is_full:
            new_topic = topics.get_or_create(fields.topic, 1, sys_flag)
        if new_topic is None:
            problem = f"topic[{fields.topic}] not exist, apply first please!{HELP}"
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, problem)
        return new_topic

    def _check_lmq_names(self, fields: SendMessage, *, may_be_child: bool) -> None:
        """Refuse a message with invalid names of light queues, too many names, or too many new ones.

        In the original, an invalid name in the store stops all dispatch or that of the message, and a delayed message
        without room for its offsets is lost at its delivery.
        """
        encoded = fields.properties_bytes
        lmq_names = decode_lmq_names(encoded)
        if not may_be_child:
            check_no_lite_queue(fields.topic, lmq_names)
        if len(encoded) + len(lmq_names) * _LMQ_OFFSET_BYTES + _ADDED_BYTES > layout.MAX_PROPERTIES_BYTES:
            count = len(lmq_names)
            problem = (
                f"{count} light queues are too many for one message: its properties have no room for their offsets"
            )
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, problem)
        invalid_name = next((name for name in lmq_names if not is_lmq(name)), None)
        if invalid_name is not None:
            shown_name = repr(invalid_name[:_SHOWN_CHARS])
            problem = f"{layout.PROPERTY_INNER_MULTI_DISPATCH} names {shown_name}, which cannot be a light queue"
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, problem)
        self._reserve_lmqs(lmq_names)

    def _reserve_lmqs(self, lmq_names: list[str]) -> None:
        if not self._state.store.appender.reserve_lmqs(lmq_names):
            if lmq_names[0].startswith(LITE_PREFIX):
                raise ResponseError(ResponseCode.LMQ_QUOTA_EXCEEDED, _TOO_MANY_LITE_TOPICS)
            raise ResponseError(ResponseCode.SYSTEM_ERROR, _TOO_MANY_LMQS)

    def _put_batch(
        self, request: RemotingCommand, connection: Connection, fields: SendMessage, queue_id: int, sys_flag: int
    ) -> WriteResult:
        """Store a batch; the request's properties are appended to those of each message."""
        if fields.topic.startswith(names.RETRY_PREFIX):
            problem = f"batch request does not support retry group {fields.topic}"
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, problem)
        properties = decode_properties(fields.properties_bytes) | self._broker_properties
        if _read_delay_level(properties) > 0:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal_remark())
        result = self._state.store.bulk.put_batch(
            fields.topic,
            queue_id,
            bytes(request.body),
            encode_properties(properties),
            fields.born_timestamp,
            connection.remote_host,
            self._state.clock_ms(),
            sys_flag=sys_flag,
            reconsume_times=fields.reconsume_times or 0,
        )
        return WriteResult(queue_id, result, properties.get(layout.PROPERTY_UNIQ_KEY), True)

    def _is_inner_batch(self, request: RemotingCommand, fields: SendMessage) -> bool:
        """Return whether a batch becomes one record of a topic with batch queues.

        A batch without a unique key becomes single records, as in the original.
        """
        if fields.topic in self._state.topics.unwritten:  # a kill could lose the topic, with records of the wrong kind
            raise ResponseError(ResponseCode.SYSTEM_BUSY, f"the topic[{fields.topic}] is being created, try later")
        text = "\x02" + (fields.properties or "")
        if fields.sys_flag & layout.FLAG_INNER_BATCH:
            return True
        is_inner = fields.batch and _UNIQ_KEY.search(text) is not None
        body = bytes(request.body) if fields.batch and not is_inner else b""
        if _INNER_BATCH_PROPERTY.search(text) or any(name in body for name in _INNER_BATCH_NAMES):
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal_remark())
        return is_inner

    def _put_inner_batch(
        self, request: RemotingCommand, connection: Connection, fields: SendMessage, queue_id: int, sys_flag: int
    ) -> WriteResult:
        """Store a batch as one record. Source: ``SendMessageProcessor#sendBatchMessage``."""
        properties = decode_properties(fields.properties_bytes) | self._broker_properties
        declared_count = properties.pop(layout.PROPERTY_INNER_NUM, None)
        properties.pop(layout.PROPERTY_INNER_BASE, None)
        body = bytes(request.body)
        is_delayed = _read_delay_level(properties) > 0 or any(name in properties for name in _TIMER_PROPERTIES)
        is_wrong_count = declared_count is not None and declared_count != str(
            count_messages(body, layout.MAX_BATCH_COUNT)
        )
        if is_delayed or is_transaction(properties) or is_wrong_count:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal_remark())
        uniq_key = properties.setdefault(layout.PROPERTY_UNIQ_KEY, self._uniq_keys.next(self._state.clock_ms()))
        result = self._state.store.bulk.put_inner_batch(
            fields.topic,
            queue_id,
            body,
            encode_properties(properties),
            fields.born_timestamp,
            connection.remote_host,
            self._state.clock_ms(),
            flag=fields.flag,
            sys_flag=sys_flag,
            reconsume_times=fields.reconsume_times or 0,
        )
        return WriteResult(queue_id, result, uniq_key, True, batch_key=uniq_key if fields.batch else None)

    def _put_special(
        self, request: RemotingCommand, connection: Connection, fields: SendMessage, queue_id: int, sys_flag: int
    ) -> WriteResult:
        """Store a delayed, timer, retried or half message, or one whose sender does not wait."""
        properties = decode_properties(fields.properties_bytes)
        topic, sent_queue_id = fields.topic, queue_id
        if topic.startswith(names.RETRY_PREFIX):
            topic, queue_id = self._redirect_retry(request, fields, queue_id, properties)
        level = _read_delay_level(properties)
        is_half = is_transaction(properties) and not ((fields.reconsume_times or 0) > 0 and level > 0)
        if is_half and self._state.config.reject_transaction_message:
            problem = f"the broker[{self._state.address}] sending transaction message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, problem)
        for name in [
            name for name in properties if name == layout.PROPERTY_POP_CK or name.startswith("__RMQ.TRANSIENT.")
        ]:
            del properties[name]
        if layout.PROPERTY_PRIORITY in properties:
            sent_queue_id = queue_id = self._queue_by_priority(
                topic, queue_id, properties, is_plain=not is_half and not level
            )
        properties |= self._broker_properties
        uniq_key = properties.setdefault(layout.PROPERTY_UNIQ_KEY, self._uniq_keys.next(self._state.clock_ms()))
        if is_half:
            topic, queue_id = redirect_to_half(topic, queue_id, properties)
            sys_flag &= ~layout.FLAG_TRANSACTION_MASK
        elif level > 0:
            remove_timer_properties(properties)
            topic, queue_id = self._levels.redirect(topic, queue_id, properties, level)
        else:
            topic, queue_id = self._state.timers.redirect(topic, queue_id, properties)
        encoded = encode_properties(properties)
        if len(encoded) > layout.MAX_PROPERTIES_BYTES:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal_remark())
        result = self._appender.put(
            topic,
            queue_id,
            request.body,
            encoded,
            fields.born_timestamp,
            connection.remote_host,
            self._state.clock_ms(),
            flag=fields.flag,
            sys_flag=sys_flag,
            reconsume_times=fields.reconsume_times or 0,
        )
        waits = properties.get(layout.PROPERTY_WAIT, "true").lower() == "true"
        handle = None if is_half else encode_recall_handle(properties, self._state.config.broker_name)
        return WriteResult(sent_queue_id, result, uniq_key, waits, handle)

    def _queue_by_priority(self, topic: str, queue_id: int, properties: dict[str, str], *, is_plain: bool) -> int:
        """Return the queue of a message's priority, which only plain messages retain. Source: RocketMQ 5.4."""
        if not is_plain or any(name in properties for name in _PRIORITY_EXCLUDING_PROPERTIES):
            del properties[layout.PROPERTY_PRIORITY]
            return queue_id
        config = self._state.topics.table.get(topic)
        priority = parse_decimal(properties[layout.PROPERTY_PRIORITY], None, _PRIORITY_DIGITS)
        if config is None or priority is None:
            return queue_id
        return min(priority, max(config.write_queue_nums, 1) - 1)

    def _redirect_retry(
        self, request: RemotingCommand, fields: SendMessage, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int]:
        """Return topic and queue of a retried message or of its dead letter. Source: ``handleRetryAndDLQ``."""
        state, group_name = self._state, fields.topic.removeprefix(names.RETRY_PREFIX)
        group = state.groups.find(group_name, state.config.auto_create_subscription_group)
        if group is None:
            problem = f"subscription group not exist, {group_name} {HELP}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
        is_retried = (fields.reconsume_times or 0) <= max_retries(request, fields, group)
        if is_retried and not state.locks.is_any_locked(group_name):
            return fields.topic, queue_id
        properties[layout.PROPERTY_DELAY] = "-1"
        return state.topics.get_or_create(names.dlq_topic(group_name), 1).topic_name, 0

    def _illegal_remark(self) -> str:
        return _ILLEGAL.format(self._state.store.config.max_message_bytes)

    def error_response(self, status: PutStatus) -> ResponseError:
        """Return the error response of a failed append. Source: ``handlePutMessageResult``."""
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal_remark())
        if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
            return ResponseError(ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.")
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            reason = "; ".join(self._state.store.refusals.values()) or "the store refuses appends now"
            return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE.format(reason))
        return ResponseError(ResponseCode.SYSTEM_ERROR, status.value)


def max_retries(request: RemotingCommand, fields: SendMessage | SendBackFields, group: SubscriptionGroupConfig) -> int:
    """Return the number of retries before the dead letter: the consumer's if the request has it, else the group's."""
    if request.version >= Version.V3_4_9 and fields.max_reconsume_times is not None:
        return fields.max_reconsume_times
    return group.retry_max_times


def _read_delay_level(properties: dict[str, str]) -> int:
    """Return the delay level in a message's properties; 0 without one. Raises ResponseError."""
    text = properties.get(layout.PROPERTY_DELAY, "0")
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"the property {layout.PROPERTY_DELAY} is not a number")
    return int(text)
