"""Checks of POP's requests: whether a group may take a topic's messages, and which of them it wants."""

from typing import Final

from rmq_core.broker.processors.pull import check_expression_size
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.subscription_filter import Filter, filter_of, is_tag_type, subscription
from rmq_core.broker.tables.topics import has_batch_queues
from rmq_core.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_formats.sql92 import SqlError

_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def checked(state: BrokerState, group_name: str, topic_name: str, queue_id: int) -> SubscriptionGroupConfig:
    """The group, if it may pop the topic.

    Raises:
        ResponseError: it may not.

    Source: ``PopMessageProcessor#processRequest``.
    """
    config = state.config
    if not config.broker_permission & names.PERM_READ:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pop message is forbidden")
    if not config.timer_wheel_enable:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker[{state.address}] pop message is forbidden because timerWheelEnable is false",
        )
    topic = topic_of(state, topic_name)
    if has_batch_queues(topic):
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, f"the topic[{topic_name}] has batch queues (BatchConsumeQueue): pull it"
        )
    if not topic.perm & names.PERM_READ:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] peeking message is forbidden")
    if queue_id >= topic.read_queue_nums:
        raise ResponseError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic_name}] topicConfig.readQueueNums:[{topic.read_queue_nums}]",
        )
    refuse_light_group(state, group_name)
    group = state.groups.find(group_name, config.auto_create_subscription_group)
    if group is None:
        raise ResponseError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group_name}] does not exist, {_HELP}"
        )
    if not group.consume_enable:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}")
    return group


def refuse_light_group(state: BrokerState, group: str) -> None:
    """Refuse a group of light queues: anybody may make up such, and POP keeps tables and retry topics of groups.

    Raises:
        ResponseError: it is one.
    """
    if state.groups.is_light(group):
        raise ResponseError(ResponseCode.NO_PERMISSION, f"[{group}] is a group of light queues (LMQ): let it pull")


def topic_of(state: BrokerState, topic: str) -> TopicConfig:
    """The settings of a topic, or of a light queue. Raises ResponseError."""
    found = state.topics.get(topic)
    if found is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {_HELP}")
    return found


def filter_asked(state: BrokerState, topic: str, expression: str | None, kind: str | None) -> Filter:
    """The filter of a request's expression. Raises ResponseError."""
    check_expression_size(len(expression or ""), state.config)
    try:
        one = subscription(topic, expression, kind, 0)
        if not is_tag_type(one.expression_type) and not state.config.enable_property_filter:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        return filter_of(one)
    except (ValueError, SqlError) as error:
        raise ResponseError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        ) from error
