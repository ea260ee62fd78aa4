"""Stores client messages: finds the topic, adds properties, and redirects delayed, timer, half and retried ones.

Source: ``SendMessageProcessor``, ``AbstractSendMessageProcessor#msgCheck``.
"""

import random
import re
from typing import Final, NamedTuple

from rmq_core.broker.processors.lite_names import check_names_no_child, with_lite_queue
from rmq_core.broker.processors.recall import recall_handle
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.timer_admission import drop as drop_times
from rmq_core.broker.tables.topics import has_batch_queues, is_lite
from rmq_core.broker.tables.waiters import DelayLevels
from rmq_core.broker.transaction.half import is_transaction, to_half
from rmq_core.remoting.bodies import TopicConfig
from rmq_core.remoting.codes import ResponseCode, Version
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import SendMessage
from rmq_core.remoting.uniq_key import UniqKeys
from rmq_core.store.commitlog.light_places import is_light_queue, named_light_queues
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs.layout import (
    FLAG_INNER_BATCH,
    FLAG_MULTI_TAGS,
    FLAG_TRANSACTION_MASK,
    MAX_BATCH_COUNT,
    MAX_PROPERTIES_BYTES,
    PROPERTY_DELAY,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_LIGHT_NAMES,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQ_KEY,
)
from rmq_formats.codecs.properties import decode_properties, encode_properties
from rmq_formats.codecs.topics import LITE_PREFIX
from rmq_formats.codecs.variants.inner_batch import count_messages

_new = tuple.__new__  # of a NamedTuple, without the call of its own
_OK: Final = PutStatus.PUT_OK
_WAIT: Final = "WAIT"
_SEPARATOR: Final = bytes([PROPERTY_SEPARATOR])
_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
_NOT_BY_PRIORITY: Final = ("__SHARDINGKEY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_LONG_DIGITS: Final = 10
_POP_CHECKPOINT: Final = "POP_CK"
_TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
# Properties that need handling; without them the client's text goes into the record as it is.
# A separator is put before the text for them: an expression that begins with a letter is searched for much faster.
_SPECIAL: Final = re.compile(
    "\x02(?:DELAY|T(?:RAN_MSG|IMER_DELAY_SEC|IMER_DELAY_MS|IMER_DELIVER_MS|RACE_ON)|POP_CK|MSG_REGION|CLUSTER"
    "|WAIT\x01(?!true)|UNIQ_KEY\x01(?:\x02|$)|__RMQ[.]TRANSIENT|_SYS_MSG_PRIORITY_)"
)
_LIGHT_NAMES: Final = f"\x02{PROPERTY_LIGHT_NAMES}\x01"
_SHOWN_CHARS: Final = 60
_PLACE_BYTES: Final = 11  # of a light queue with fewer than ten billion messages, and a comma
_ADDED_BYTES: Final = 1024  # what a broker adds itself: its marks, a unique key, where a delayed message goes
_TOO_MANY_LIGHT_QUEUES: Final = (
    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
    "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
)
_TOO_MANY_LITE_TOPICS: Final = "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."
_UNIQ_KEY: Final = re.compile("\x02UNIQ_KEY\x01([^\x02]+)")
_ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit {}B, "
    "msg properties length limit 32KB."
)
_INNER: Final = re.compile(f"\x02(?:{PROPERTY_INNER_NUM}|{PROPERTY_INNER_BASE})\x01")
_INNER_NAMES: Final = tuple(f"{name}\x01".encode() for name in (PROPERTY_INNER_NUM, PROPERTY_INNER_BASE))
_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_NOT_AVAILABLE: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
    "messages are put to the slave, message store has been shut down, etc. ({})"
)


class Stored(NamedTuple):
    """Result of storing a client's message.

    Attributes:
        queue_id: of the queue that it belongs to.
        result: of its append, which went well.
        uniq_key: the producer's id of it, or the broker's; None for a batch that came without.
        waits: whether its sender waits for flush and replication.
        recall_handle: what its sender can recall it by; None if it is no timer message.
        batch_key: the unique key of an inner batch, which its sender takes for the id of all; None else.
    """

    queue_id: int
    result: PutResult
    uniq_key: str | None
    waits: bool
    recall_handle: str | None = None
    batch_key: str | None = None


class Storing:
    """Stores the messages that clients send.

    Attributes:
        marks: properties that are added to each message, and returned to its sender.
    """

    def __init__(self, state: BrokerState, levels: DelayLevels) -> None:
        self._state = state
        self._levels = levels
        self._appender = state.store.appender
        self._has_light_queues = state.store.config.lmq_enabled
        config = state.config
        self.marks = {"MSG_REGION": config.region_id, "TRACE_ON": str(config.trace_on).lower()}
        self._own_properties = self.marks | {"CLUSTER": config.broker_cluster_name}
        self._own = encode_properties(self._own_properties)
        self._uniq_keys = UniqKeys()

    def store(self, request: RemotingCommand, connection: Connection, asked: SendMessage) -> Stored:
        """Store a message or a batch.

        Args:
            request: it has the body.
            connection: of the sender.
            asked: the request's fields.

        Raises:
            ResponseError: the error response, if it cannot be stored.
        """
        state, name = self._state, asked.topic
        topic = state.topics.table.get(name)
        if topic is None or name in names.NOT_FOR_CLIENTS:
            topic = self._make_topic(asked)
        if not state.config.broker_permission & names.PERM_WRITE:
            self._check_permission(topic)
        queue_id = asked.queue_id
        if queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {topic} Producer: {connection.remote_address}",
            )
        if queue_id < 0:
            queue_id = random.randrange(max(topic.write_queue_nums, 1))
        sys_flag = asked.sys_flag
        is_inner = bool(sys_flag & FLAG_INNER_BATCH)
        if topic.attributes and has_batch_queues(topic):
            is_inner = self._is_inner_batch(request, asked)
        elif is_inner:  # Source: ``HookUtils#checkInnerBatch``
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal())
        given = asked
        if topic.attributes and is_lite(topic):
            asked = with_lite_queue(asked, request.body, has_light_queues=self._has_light_queues)
        if topic.topic_filter_type == "MULTI_TAG":
            sys_flag |= FLAG_MULTI_TAGS
        text = "\x02" + (asked.properties or "")
        if self._has_light_queues and _LIGHT_NAMES in text:
            self._check_light_names(asked, may_be_child=asked is not given)
        if is_inner:
            stored = self._put_inner_batch(request, connection, asked, queue_id, sys_flag)
        elif asked.batch:
            stored = self._put_batch(request, connection, asked, queue_id, sys_flag)
        elif _SPECIAL.search(text) is None and not name.startswith(names.RETRY_PREFIX):
            found = _UNIQ_KEY.search(text)
            properties = text[1:].encode("utf-8", "replace")
            if properties and properties[-1] != PROPERTY_SEPARATOR:
                properties += _SEPARATOR
            uniq_key = found[1] if found else self._uniq_keys.next(state.clock_ms())
            if not found:
                properties += encode_properties({PROPERTY_UNIQ_KEY: uniq_key})
            result = self._appender.put(
                name, queue_id, request.body, properties + self._own, asked.born_timestamp, connection.remote_host,
                state.clock_ms(), flag=asked.flag, sys_flag=sys_flag, reconsume_times=asked.reconsume_times or 0,
            )  # fmt: skip
            stored = _new(Stored, (queue_id, result, uniq_key, True, None, None))
        else:
            stored = self._put_special(request, connection, asked, queue_id, sys_flag)
        result = stored.result
        if result.status is not _OK:
            state.stats.times.failed_puts += 1
            raise self.failure(result.status)
        state.stats.count_messages(stats.PUT, name, result.message_count, result.size)
        return stored

    def _make_topic(self, asked: SendMessage) -> TopicConfig:
        """Create the topic of a message, or raise the error response if that is not allowed or the name is reserved."""
        topics = self._state.topics
        light = topics.get(asked.topic) if is_light_queue(asked.topic) else None
        if light is not None:
            check_names_no_child(asked.topic, [])
            self._check_room([asked.topic])
            return light
        fault = names.topic_fault(asked.topic)
        if fault is not None:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, fault)
        if asked.topic in names.NOT_FOR_CLIENTS:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{asked.topic}] is forbidden.")
        is_retry = asked.topic.startswith(names.RETRY_PREFIX)
        sys_flag = (2 if is_retry else 1) if asked.unit_mode else 0
        made = topics.make_for_send(
            asked.topic, asked.default_topic, asked.default_topic_queue_nums, sys_flag,
            self._state.config.auto_create_topic_enable,
        )  # fmt: skip
        if made is None and is_retry and not topics.is_full:
            made = topics.make(asked.topic, 1, sys_flag)
        if made is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{asked.topic}] not exist, apply first please!{_HELP}"
            )
        return made

    def _check_light_names(self, asked: SendMessage, *, may_be_child: bool) -> None:
        """Refuse a message that names what is no light queue, more than it has places for, or too many new ones.

        The original stores the first; from it on it dispatches nothing any more, or the message to none of them. A
        delayed message without room for its places would be lost when it is delivered.
        """
        encoded = (asked.properties or "").encode("utf-8", "replace")
        found = named_light_queues(encoded)
        if not may_be_child:
            check_names_no_child(asked.topic, found)
        if len(encoded) + len(found) * _PLACE_BYTES + _ADDED_BYTES > MAX_PROPERTIES_BYTES:
            what = (
                f"{len(found)} light queues are too many for one message: their places have no room in its properties"
            )
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, what)
        wrong = next((name for name in found if not is_light_queue(name)), None)
        if wrong is not None:
            what = f"{PROPERTY_LIGHT_NAMES} names {wrong[:_SHOWN_CHARS]!r}, which cannot be a light queue"
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, what)
        self._check_room(found)

    def _check_room(self, light_queues: list[str]) -> None:
        if not self._state.store.appender.takes_light_queues(light_queues):
            if light_queues[0].startswith(LITE_PREFIX):
                raise ResponseError(ResponseCode.LMQ_QUOTA_EXCEEDED, _TOO_MANY_LITE_TOPICS)
            raise ResponseError(ResponseCode.SYSTEM_ERROR, _TOO_MANY_LIGHT_QUEUES)

    def _check_permission(self, topic: TopicConfig) -> None:
        if topic.order:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._state.address}] sending message is forbidden"
            )

    def _put_batch(
        self, request: RemotingCommand, connection: Connection, asked: SendMessage, queue_id: int, sys_flag: int
    ) -> Stored:
        """Store a batch; its own properties are appended to those of each of its messages."""
        if asked.topic.startswith(names.RETRY_PREFIX):
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {asked.topic}"
            )
        properties = decode_properties((asked.properties or "").encode("utf-8", "replace")) | self._own_properties
        if _level(properties) > 0:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal())
        result = self._state.store.put_batch(
            asked.topic, queue_id, bytes(request.body), encode_properties(properties), asked.born_timestamp,
            connection.remote_host, self._state.clock_ms(), sys_flag=sys_flag,
            reconsume_times=asked.reconsume_times or 0,
        )  # fmt: skip
        return Stored(queue_id, result, properties.get(PROPERTY_UNIQ_KEY), True)

    def _is_inner_batch(self, request: RemotingCommand, asked: SendMessage) -> bool:
        """Whether a request to a topic with batch queues is to be one record of several messages.

        A batch without a unique key of its own becomes records, as in the original.
        """
        if asked.topic in self._state.topics.unwritten:  # after a kill, its records would be taken for another topic's
            raise ResponseError(ResponseCode.SYSTEM_BUSY, f"the topic[{asked.topic}] is being made, try later")
        text = "\x02" + (asked.properties or "")
        if asked.sys_flag & FLAG_INNER_BATCH:
            return True
        is_inner = asked.batch and _UNIQ_KEY.search(text) is not None
        body = bytes(request.body) if asked.batch and not is_inner else b""
        if _INNER.search(text) or any(name in body for name in _INNER_NAMES):
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal())
        return is_inner

    def _put_inner_batch(
        self, request: RemotingCommand, connection: Connection, asked: SendMessage, queue_id: int, sys_flag: int
    ) -> Stored:
        """Store a batch as one record. Source: ``SendMessageProcessor#sendBatchMessage``."""
        properties = decode_properties((asked.properties or "").encode("utf-8", "replace")) | self._own_properties
        told, _ = properties.pop(PROPERTY_INNER_NUM, None), properties.pop(PROPERTY_INNER_BASE, None)
        body = bytes(request.body)
        is_later = _level(properties) > 0 or any(name in properties for name in _NOT_BY_PRIORITY[1:])
        is_lie = told is not None and told != str(count_messages(body, MAX_BATCH_COUNT))
        if is_later or is_transaction(properties) or is_lie:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal())
        uniq_key = properties.setdefault(PROPERTY_UNIQ_KEY, self._uniq_keys.next(self._state.clock_ms()))
        result = self._state.store.bulk.put_inner_batch(
            asked.topic, queue_id, body, encode_properties(properties), asked.born_timestamp, connection.remote_host,
            self._state.clock_ms(), flag=asked.flag, sys_flag=sys_flag, reconsume_times=asked.reconsume_times or 0,
        )  # fmt: skip
        return Stored(queue_id, result, uniq_key, True, batch_key=uniq_key if asked.batch else None)

    def _put_special(
        self, request: RemotingCommand, connection: Connection, asked: SendMessage, queue_id: int, sys_flag: int
    ) -> Stored:
        """Store a message that is delayed, timed, retried, half of a transaction, or whose sender does not wait."""
        properties = decode_properties((asked.properties or "").encode("utf-8", "replace"))
        topic, asked_queue_id = asked.topic, queue_id
        if topic.startswith(names.RETRY_PREFIX):
            topic, queue_id = self._retry_or_dead(request, asked, queue_id, properties)
        level = _level(properties)
        is_half = is_transaction(properties) and not ((asked.reconsume_times or 0) > 0 and level > 0)
        if is_half and self._state.config.reject_transaction_message:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.address}] sending transaction message is forbidden",
            )
        for name in [name for name in properties if name == _POP_CHECKPOINT or name.startswith(_TRANSIENT_PREFIX)]:
            del properties[name]
        if _PRIORITY in properties:
            asked_queue_id = queue_id = self._by_priority(
                topic, queue_id, properties, is_plain=not is_half and not level
            )
        properties |= self._own_properties
        uniq_key = properties.setdefault(PROPERTY_UNIQ_KEY, self._uniq_keys.next(self._state.clock_ms()))
        if is_half:
            topic, queue_id = to_half(topic, queue_id, properties)
            sys_flag &= ~FLAG_TRANSACTION_MASK
        elif level > 0:
            drop_times(properties)
            topic, queue_id = self._levels.redirect(topic, queue_id, properties, level)
        else:
            topic, queue_id = self._state.timers.redirect(topic, queue_id, properties)
        encoded = encode_properties(properties)
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal())
        result = self._appender.put(
            topic, queue_id, request.body, encoded, asked.born_timestamp, connection.remote_host,
            self._state.clock_ms(), flag=asked.flag, sys_flag=sys_flag, reconsume_times=asked.reconsume_times or 0,
        )  # fmt: skip
        waits = properties.get(_WAIT, "true").lower() == "true"
        handle = None if is_half else recall_handle(properties, self._state.config.broker_name)
        return Stored(asked_queue_id, result, uniq_key, waits, handle)

    def _by_priority(self, topic: str, queue_id: int, properties: dict[str, str], *, is_plain: bool) -> int:
        """The queue of a message with a priority, which others than plain ones lose. Source: RocketMQ 5.4."""
        if not is_plain or any(name in properties for name in _NOT_BY_PRIORITY):
            del properties[_PRIORITY]
            return queue_id
        text, config = properties[_PRIORITY], self._state.topics.table.get(topic)
        if config is None or not (text.isascii() and text.isdecimal() and len(text) < _LONG_DIGITS):
            return queue_id
        return min(int(text), max(config.write_queue_nums, 1) - 1)

    def _retry_or_dead(
        self, request: RemotingCommand, asked: SendMessage, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int]:
        """Topic and queue of a message sent to a retry topic, or of its dead letter. Source: ``handleRetryAndDLQ``."""
        state, group_name = self._state, asked.topic.removeprefix(names.RETRY_PREFIX)
        group = state.groups.find(group_name, state.config.auto_create_subscription_group)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group_name} {_HELP}"
            )
        most = group.retry_max_times
        if request.version >= Version.V3_4_9 and asked.max_reconsume_times is not None:
            most = asked.max_reconsume_times
        if (asked.reconsume_times or 0) <= most and not state.locks.is_any_locked(group_name):
            return asked.topic, queue_id
        properties[PROPERTY_DELAY] = "-1"
        return state.topics.make(names.dlq_topic(group_name), 1).topic_name, 0

    def _illegal(self) -> str:
        return _ILLEGAL.format(self._state.store.config.max_message_bytes)

    def failure(self, status: PutStatus) -> ResponseError:
        """The error response for a message that was not stored. Source: ``handlePutMessageResult``."""
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._illegal())
        if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
            return ResponseError(ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.")
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            why = "; ".join(self._state.store.refusals.values()) or "the store takes no messages now"
            return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE.format(why))
        return ResponseError(ResponseCode.SYSTEM_ERROR, status.value)


def _level(properties: dict[str, str]) -> int:
    """The delay level in a message's properties; 0 if there is none.

    Raises:
        ResponseError: the property is no number.
    """
    text = properties.get(PROPERTY_DELAY, "0")
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"the property {PROPERTY_DELAY} is not a number")
    return int(text)
