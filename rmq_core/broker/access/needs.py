"""What each request needs: one table of request codes. A code that is not in it is for super users alone.

The rules are those of RocketMQ 5.3.3 where it has any (``DefaultAuthorizationContextBuilder`` and the annotations of
header classes). It asks only for a login where this table asks for rights on the cluster, a topic or a group: for
changes of settings, of groups and of lists of topics, for tables of all topics, groups and offsets, lite pulls, replies
and checks of subscriptions. A message by its place (33) could be of any topic, whatever the request names, and so needs
the cluster. The end of a transaction that names no topic needs the cluster, too.
"""

from collections.abc import Callable, Iterable
from typing import Final

from rmq_core.broker.access.policies import Action, Need, cluster_need, group_need, topic_need
from rmq_core.remoting.bodies import (
    CheckClientBody,
    GroupConfigList,
    HeartbeatData,
    LockBatchRequest,
    SubscriptionGroupConfig,
    TopicConfigList,
    decode_body,
)
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand

Rule = Callable[[RemotingCommand, str], Iterable[Need]]
"""Takes a request and the cluster's name; gives what is needed, all of it."""

_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_GET: Final = (Action.GET,)
_UPDATE: Final = (Action.UPDATE,)
_READ: Final = (Action.SUB, Action.GET)
_COMMIT: Final = (Action.SUB, Action.UPDATE)


def _cluster(*actions: Action) -> Rule:
    return lambda _, cluster: (cluster_need(cluster, *actions),)


def _of(*, topic: str = "", topic_actions: Iterable[Action] = (), group: str = "", group_actions: Iterable[Action] = (),
        is_optional: bool = False) -> Rule:  # fmt: skip
    """Make the rule of requests that name a topic, a group, or both, in fields of these names.

    A topic that is not named, where that may be, means all topics of the group.
    """
    of_topic, of_group = tuple(topic_actions), tuple(group_actions)

    def needs(request: RemotingCommand, _: str) -> list[Need]:
        fields, found = request.ext_fields, []
        if (topic and (name := fields.get(topic, ""))) or (topic and not is_optional):
            found.append(topic_need(name, *of_topic))
        if group:
            found.append(group_need(fields.get(group, ""), *of_group))
        return found

    return needs


def _topic(*actions: Action, field: str = "topic") -> Rule:
    return _of(topic=field, topic_actions=actions)


def _group(*actions: Action, field: str) -> Rule:
    return _of(group=field, group_actions=actions)


def _both(actions: Iterable[Action], *, group: str, is_optional: bool = False) -> Rule:
    actions = tuple(actions)
    return _of(topic="topic", topic_actions=actions, group=group, group_actions=actions, is_optional=is_optional)


def _send(field: str) -> Rule:
    """Make the rule of sends: Pub on a topic; to a topic of retries, Sub on its group."""

    def needs(request: RemotingCommand, _: str) -> tuple[Need]:
        topic = request.ext_fields.get(field, "")
        return (topic_need(topic, Action.SUB if topic.startswith("%RETRY%") else Action.PUB),)

    return needs


def _end_transaction(request: RemotingCommand, cluster: str) -> tuple[Need]:
    topic = request.ext_fields.get("topic", "")
    return (topic_need(topic, *_PUB) if topic else cluster_need(cluster, *_UPDATE),)


def _heartbeat(request: RemotingCommand, _: str) -> Iterable[Need]:
    for data in decode_body(request.body, HeartbeatData, is_request=True).consumer_data_set:
        yield group_need(data.group_name, *_SUB)
        for subscription in data.subscription_data_set or ():
            yield topic_need(subscription.topic, *_SUB)


def _unregister(request: RemotingCommand, _: str) -> Iterable[Need]:
    if group := request.ext_fields.get("consumerGroup"):
        yield group_need(group, *_SUB)


def _lock(request: RemotingCommand, _: str) -> Iterable[Need]:
    asked = decode_body(request.body, LockBatchRequest, is_request=True)
    yield group_need(asked.consumer_group, *_SUB)
    for topic in {queue.topic for queue in asked.mq_set}:
        yield topic_need(topic, *_SUB)


def _check_client(request: RemotingCommand, _: str) -> Iterable[Need]:
    yield group_need(decode_body(request.body, CheckClientBody, is_request=True).group, *_SUB)


def _topics(request: RemotingCommand, _: str) -> Iterable[Need]:
    for config in decode_body(request.body, TopicConfigList, is_request=True).topic_config_list:
        yield topic_need(config.topic_name, Action.CREATE)


def _put_group(request: RemotingCommand, _: str) -> Iterable[Need]:
    config = decode_body(request.body, SubscriptionGroupConfig, is_request=True)
    yield group_need(config.group_name, Action.CREATE, Action.UPDATE)


def _put_groups(request: RemotingCommand, _: str) -> Iterable[Need]:
    for config in decode_body(request.body, GroupConfigList, is_request=True).group_config_list:
        yield group_need(config.group_name, Action.CREATE, Action.UPDATE)


def _clone(request: RemotingCommand, _: str) -> Iterable[Need]:
    fields = request.ext_fields
    yield group_need(fields.get("srcGroup", ""), *_GET)
    yield group_need(fields.get("destGroup", ""), *_UPDATE)
    if topic := fields.get("topic"):
        yield topic_need(topic, *_UPDATE)


_CODE = RequestCode
RULES: Final[dict[int, Rule]] = {
    _CODE.SEND_MESSAGE: _send("topic"),
    _CODE.SEND_MESSAGE_V2: _send("b"),
    _CODE.SEND_BATCH_MESSAGE: _send("b"),
    _CODE.SEND_REPLY_MESSAGE: _send("topic"),
    _CODE.SEND_REPLY_MESSAGE_V2: _send("b"),
    _CODE.RECALL_MESSAGE: _topic(*_PUB),
    _CODE.END_TRANSACTION: _end_transaction,
    _CODE.CONSUMER_SEND_MSG_BACK: _group(*_SUB, field="group"),
    _CODE.PULL_MESSAGE: _both(_SUB, group="consumerGroup"),
    _CODE.LITE_PULL_MESSAGE: _both(_SUB, group="consumerGroup"),
    _CODE.QUERY_MESSAGE: _topic(*_READ),
    _CODE.VIEW_MESSAGE_BY_ID: _cluster(*_GET),
    _CODE.QUERY_CONSUMER_OFFSET: _both(_READ, group="consumerGroup"),
    _CODE.UPDATE_CONSUMER_OFFSET: _both(_COMMIT, group="consumerGroup"),
    _CODE.SEARCH_OFFSET_BY_TIMESTAMP: _topic(*_READ),
    _CODE.GET_MAX_OFFSET: _topic(*_READ),
    _CODE.GET_MIN_OFFSET: _topic(*_READ),
    _CODE.GET_EARLIEST_MSG_STORETIME: _topic(*_READ),
    _CODE.HEART_BEAT: _heartbeat,
    _CODE.UNREGISTER_CLIENT: _unregister,
    _CODE.GET_CONSUMER_LIST_BY_GROUP: _group(*_READ, field="consumerGroup"),
    _CODE.LOCK_BATCH_MQ: _lock,
    _CODE.UNLOCK_BATCH_MQ: _lock,
    _CODE.CHECK_CLIENT_CONFIG: _check_client,
    _CODE.UPDATE_AND_CREATE_TOPIC: _topic(Action.CREATE),
    _CODE.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    _CODE.DELETE_TOPIC_IN_BROKER: _topic(Action.DELETE),
    _CODE.GET_TOPIC_CONFIG: _topic(*_GET),
    _CODE.GET_TOPIC_STATS_INFO: _topic(*_GET),
    _CODE.QUERY_TOPIC_CONSUME_BY_WHO: _topic(*_GET),
    _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _put_group,
    _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _put_groups,
    _CODE.DELETE_SUBSCRIPTIONGROUP: _group(Action.DELETE, field="groupName"),
    _CODE.GET_SUBSCRIPTIONGROUP_CONFIG: _group(*_GET, field="group"),
    _CODE.GET_CONSUMER_CONNECTION_LIST: _group(*_GET, field="consumerGroup"),
    _CODE.GET_CONSUMER_RUNNING_INFO: _group(*_GET, field="consumerGroup"),
    _CODE.CONSUME_MESSAGE_DIRECTLY: _both(_SUB, group="consumerGroup", is_optional=True),
    _CODE.GET_CONSUME_STATS: _both(_GET, group="consumerGroup", is_optional=True),
    _CODE.QUERY_TOPICS_BY_CONSUMER: _group(*_GET, field="group"),
    _CODE.QUERY_SUBSCRIPTION_BY_CONSUMER: _both(_GET, group="group", is_optional=True),
    _CODE.QUERY_CONSUME_TIME_SPAN: _both(_GET, group="group"),
    _CODE.INVOKE_BROKER_TO_RESET_OFFSET: _both(_UPDATE, group="group"),
    _CODE.CLONE_GROUP_OFFSET: _clone,
    _CODE.RESUME_CHECK_HALF_MESSAGE: _cluster(*_UPDATE),  # it names a message by its place
    **dict.fromkeys(
        (
            _CODE.UPDATE_BROKER_CONFIG, _CODE.CLEAN_EXPIRED_CONSUMEQUEUE, _CODE.CLEAN_UNUSED_TOPIC,
            _CODE.DELETE_EXPIRED_COMMITLOG, _CODE.AUTH_CREATE_USER, _CODE.AUTH_UPDATE_USER, _CODE.AUTH_DELETE_USER,
            _CODE.AUTH_CREATE_ACL, _CODE.AUTH_UPDATE_ACL, _CODE.AUTH_DELETE_ACL,
        ),
        _cluster(*_UPDATE),
    ),
    **dict.fromkeys(
        (
            _CODE.GET_ALL_TOPIC_CONFIG, _CODE.GET_BROKER_CONFIG, _CODE.GET_BROKER_RUNTIME_INFO,
            _CODE.GET_ALL_CONSUMER_OFFSET, _CODE.GET_ALL_DELAY_OFFSET, _CODE.GET_TIMER_CHECK_POINT,
            _CODE.GET_TIMER_METRICS, _CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _CODE.GET_PRODUCER_CONNECTION_LIST,
            _CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _CODE.VIEW_BROKER_STATS_DATA, _CODE.GET_BROKER_CONSUME_STATS,
            _CODE.GET_ALL_PRODUCER_INFO, _CODE.GET_ALL_MESSAGE_REQUEST_MODE, _CODE.GET_BROKER_HA_STATUS,
            _CODE.AUTH_GET_USER, _CODE.AUTH_LIST_USER, _CODE.AUTH_GET_ACL, _CODE.AUTH_LIST_ACL,
        ),
        _cluster(*_GET),
    ),
}  # fmt: skip
