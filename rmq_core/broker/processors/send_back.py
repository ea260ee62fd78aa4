"""Messages that consumers send back (request code 36): stored again for a retry, or as dead letters.

Source: ``AbstractSendMessageProcessor#consumerSendMsgBack``.
"""

import random
from typing import Final

from rmq_core.broker.processors.acknowledge import Acknowledgements
from rmq_core.broker.processors.lite_names import leave_child
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.waiters import DelayLevels
from rmq_core.remoting.bodies import SubscriptionGroupConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode, Version
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import SendBackFields
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs.layout import FLAG_INNER_BATCH, PROPERTY_DELAY
from rmq_formats.codecs.paths import is_safe_topic
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage

ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
_WAIT: Final = "WAIT"
_FIRST_LEVEL: Final = 3  # of a first retry: 10 s by default


class SendBacks:
    """Handles CONSUMER_SEND_MSG_BACK: stores a failed message again, for later or as a dead letter."""

    def __init__(self, state: BrokerState, levels: DelayLevels, acknowledgements: Acknowledgements) -> None:
        self._state = state
        self._levels = levels
        self._acknowledgements = acknowledgements

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, request: RemotingCommand, _: Connection) -> HandlerAnswer:
        """CONSUMER_SEND_MSG_BACK (36); the answer waits for the disk and slaves, where the original's does not."""
        asked = read_fields(request, SendBackFields)
        state = self._state
        group = state.groups.find(asked.group, state.config.auto_create_subscription_group)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {asked.group}"
            )
        if not state.config.broker_permission & names.PERM_WRITE:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] sending message is forbidden")
        if group.retry_queue_nums <= 0:
            return request.response()
        retry_topic = names.retry_topic(asked.group)
        if state.groups.is_light(asked.group) and retry_topic not in state.topics.table:
            self._check_light(retry_topic)
        topic = state.topics.make(retry_topic, group.retry_queue_nums, 2 * asked.unit_mode)
        if not topic.perm & names.PERM_WRITE:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        message = state.store.message(asked.offset)
        if message is None or not _is_meant(message, asked.origin_msg_id):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {asked.offset}")
        result = self._put(message, asked, group, _most_retries(request, asked, group))
        if self._acknowledgements.must_wait or state.topics.unwritten:
            return self._acknowledgements.when_safe(request, request.response(), result)
        return request.response()

    def _check_light(self, retry_topic: str) -> None:
        """Refuse a retry topic to be made for a group of light queues, whose name is as its client has made it up."""
        if not is_safe_topic(retry_topic):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"there cannot be a topic {retry_topic}")
        if self._state.topics.is_full:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"too many topics to make {retry_topic}")

    def _put(
        self, message: StoredMessage, asked: SendBackFields, group: SubscriptionGroupConfig, most_retries: int
    ) -> PutResult:
        """Store it again, for later or as dead."""
        state = self._state
        if message.sys_flag & FLAG_INNER_BATCH:  # its consumer sends the one that failed. ``HookUtils#checkInnerBatch``
            raise ResponseError(ResponseCode.SYSTEM_ERROR, PutStatus.MESSAGE_ILLEGAL.value)
        properties = message.properties
        properties.setdefault(names.RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.msg_id)
        properties[_WAIT] = "false"
        if message.reconsume_times >= most_retries or asked.delay_level < 0:
            topic, queue_id = state.topics.make(names.dlq_topic(asked.group), 1).topic_name, 0
            properties[PROPERTY_DELAY] = "0"
            leave_child(properties)
        else:
            level = asked.delay_level or _FIRST_LEVEL + message.reconsume_times
            topic, queue_id = names.retry_topic(asked.group), random.randrange(group.retry_queue_nums)
            topic, queue_id = self._levels.redirect(topic, queue_id, properties, level)
        result = state.store.appender.put(
            topic, queue_id, message.body, encode_properties(properties), message.born_timestamp_ms,
            message.born_host.to_bytes(), state.clock_ms(), flag=message.flag, sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times + 1,
        )  # fmt: skip
        if result.status is not PutStatus.PUT_OK:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, result.status.value)
        state.stats.count(stats.SNDBCK_PUT_NUMS, f"{properties[names.RETRY_TOPIC]}@{asked.group}", 1)
        return result


def _is_meant(message: StoredMessage, msg_id: str | None) -> bool:
    """Whether a message is the one that its consumer names: another may be there, where the log has lost its tail."""
    return not msg_id or message.uniq_key is None or msg_id in (message.uniq_key, message.msg_id)


def _most_retries(request: RemotingCommand, asked: SendBackFields, group: SubscriptionGroupConfig) -> int:
    if request.version >= Version.V3_4_9 and asked.max_reconsume_times is not None:
        return asked.max_reconsume_times
    return group.retry_max_times
