"""Checks of POP's requests: permission of the group, existence of the topic, filter of the expression."""

from rmq_core.broker.processors.pull import check_expression_size
from rmq_core.broker.state import APPLY_FIRST, HELP, BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.subscription_filter import Filter, compile_subscription, is_tag_type, subscription
from rmq_core.broker.tables.topics import has_batch_queues
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_formats.sql92 import SqlError


def check_pop_group(state: BrokerState, group_name: str, topic_name: str, queue_id: int) -> SubscriptionGroupConfig:
    """Return the group, if it may pop the topic. Raises ResponseError. Source: ``PopMessageProcessor``."""
    config = state.config
    if not config.broker_permission & names.PERM_READ:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pop message is forbidden")
    if not config.timer_wheel_enable:
        problem = f"the broker[{state.address}] pop message is forbidden because timerWheelEnable is false"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
    topic = state.require_topic(topic_name, APPLY_FIRST)
    if has_batch_queues(topic):
        problem = f"the topic[{topic_name}] has batch queues (BatchConsumeQueue): pull it"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
    if not topic.perm & names.PERM_READ:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] peeking message is forbidden")
    if queue_id >= topic.read_queue_nums:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, illegal_queue_remark(queue_id, topic_name, topic))
    refuse_lmq_group(state, group_name)
    group = state.groups.find(group_name, config.auto_create_subscription_group)
    if group is None:
        problem = f"subscription group [{group_name}] does not exist, {HELP}"
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
    if not group.consume_enable:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}")
    return group


def illegal_queue_remark(queue_id: int, topic: str, config: TopicConfig) -> str:
    """Return Java's words for a queue that a topic does not have."""
    queue_count = f"topicConfig.readQueueNums:[{config.read_queue_nums}]"
    return f"queueId[{queue_id}] is illegal, topic:[{topic}] {queue_count}"


def refuse_lmq_group(state: BrokerState, group: str) -> None:
    """Refuse a group of light queues: clients make up their names, and POP has tables and a topic for each group."""
    if state.groups.is_lmq_group(group):
        raise ResponseError(ResponseCode.NO_PERMISSION, f"[{group}] is a group of light queues (LMQ): let it pull")


def parse_filter(state: BrokerState, topic: str, expression: str | None, kind: str | None) -> Filter:
    """Parse the subscription expression of a request. Raises ResponseError."""
    check_expression_size(len(expression or ""), state.config)
    try:
        subscription_data = subscription(topic, expression, kind, 0)
        if not is_tag_type(subscription_data.expression_type) and not state.config.enable_property_filter:
            problem = f"The broker does not support consumer to filter message by {kind}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
        return compile_subscription(subscription_data)
    except (ValueError, SqlError) as error:
        problem = "parse the consumer's subscription failed"
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, problem) from error
