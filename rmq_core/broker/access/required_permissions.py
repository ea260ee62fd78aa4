"""Permissions that requests require: one table of request codes.

The rules are those of RocketMQ 5.3.3 where it has any (``DefaultAuthorizationContextBuilder`` and the annotations of
header classes). RocketMQ requires only a login where this table requires a permission on the cluster, a topic or a
group: for changes of settings, of groups and of lists of topics, for tables of all topics, groups and offsets, lite
pulls, replies and checks of subscriptions. The message at an offset (33) may be of any topic, and the
end of a transaction may name no topic: both require a permission on the cluster.
"""

from collections.abc import Callable, Iterable
from typing import Final

from rmq_core.broker.access.policies import Action, Permission, cluster_permission, group_permission, topic_permission
from rmq_core.broker.tables.waiters import REAL_TOPIC
from rmq_core.remoting.bodies import (
    CheckClientBody,
    GroupConfigList,
    GroupsToDelete,
    HeartbeatData,
    LockBatchRequest,
    MessageRequestMode,
    SubscriptionGroupConfig,
    TopicConfigList,
    TopicList,
    decode_body,
)
from rmq_core.remoting.bodies.lite import LiteSubscriptions
from rmq_core.remoting.bodies.pop import BatchAcks, QueryAssignment
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import normal_topic
from rmq_core.remoting.requests import ConsumeDirectly, EndTransaction, SendBackFields
from rmq_core.store.commitlog.lmq_offsets import decode_lmq_names
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_DISPATCH
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import DecodeError

Rule = Callable[[RemotingCommand, str], Iterable[Permission]]
"""Returns all permissions that a request requires; arguments are the request and the cluster's name."""

_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_GET: Final = (Action.GET,)
_UPDATE: Final = (Action.UPDATE,)
_READ: Final = (Action.SUB, Action.GET)
_COMMIT: Final = (Action.SUB, Action.UPDATE)


def _cluster(*actions: Action) -> Rule:
    return lambda _, cluster: (cluster_permission(cluster, *actions),)


def _of(*, topic: str = "", topic_actions: Iterable[Action] = (), group: str = "", group_actions: Iterable[Action] = (),
        is_optional: bool = False) -> Rule:  # fmt: skip
    """Create the rule of requests with a topic, a group, or both, in fields of these names.

    A missing optional topic means all topics of the group.
    """
    of_topic, of_group = tuple(topic_actions), tuple(group_actions)

    def list_permissions(request: RemotingCommand, _: str) -> list[Permission]:
        fields, permissions = request.ext_fields, []
        if (topic and (name := fields.get(topic, ""))) or (topic and not is_optional):
            permissions.append(topic_permission(name, *of_topic))
        if group:
            permissions.append(group_permission(fields.get(group, ""), *of_group))
        return permissions

    return list_permissions


def _topic(*actions: Action, field: str = "topic") -> Rule:
    return _of(topic=field, topic_actions=actions)


def _group(*actions: Action, field: str) -> Rule:
    return _of(group=field, group_actions=actions)


def _both(actions: Iterable[Action], *, group: str, is_optional: bool = False) -> Rule:
    actions = tuple(actions)
    return _of(topic="topic", topic_actions=actions, group=group, group_actions=actions, is_optional=is_optional)


def _send(field: str) -> Rule:
    """Create the rule of sends: Pub on a topic; for a retry topic, Sub on its group."""

    def list_permissions(request: RemotingCommand, _: str) -> tuple[Permission]:
        topic = request.ext_fields.get(field, "")
        return (topic_permission(topic, Action.SUB if topic.startswith("%RETRY%") else Action.PUB),)

    return list_permissions


def _queue_units(request: RemotingCommand, _: str) -> Iterable[Permission]:
    yield topic_permission(request.ext_fields.get("topic", ""), *_GET)
    if group := request.ext_fields.get("consumerGroup"):  # the response has the group's subscription
        yield group_permission(group, *_GET)


def _end_transaction(request: RemotingCommand, cluster: str) -> tuple[Permission]:
    topic = request.ext_fields.get("topic", "")
    return (topic_permission(topic, *_PUB) if topic else cluster_permission(cluster, *_UPDATE),)


def _heartbeat(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for data in decode_body(request.body, HeartbeatData, is_request=True).consumer_data_set:
        yield group_permission(data.group_name, *_SUB)
        for subscription in data.subscription_data_set or ():
            yield topic_permission(subscription.topic, *_SUB)


def _unregister(request: RemotingCommand, _: str) -> Iterable[Permission]:
    if group := request.ext_fields.get("consumerGroup"):
        yield group_permission(group, *_SUB)


def _lock(request: RemotingCommand, _: str) -> Iterable[Permission]:
    body = decode_body(request.body, LockBatchRequest, is_request=True)
    yield group_permission(body.consumer_group, *_SUB)
    for topic in {queue.topic for queue in body.mq_set}:
        yield topic_permission(topic, *_SUB)


def _check_client(request: RemotingCommand, _: str) -> Iterable[Permission]:
    yield group_permission(decode_body(request.body, CheckClientBody, is_request=True).group, *_SUB)


def _topics(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for config in decode_body(request.body, TopicConfigList, is_request=True).topic_config_list:
        yield topic_permission(config.topic_name, Action.CREATE)


def _put_group(request: RemotingCommand, _: str) -> Iterable[Permission]:
    config = decode_body(request.body, SubscriptionGroupConfig, is_request=True)
    yield group_permission(config.group_name, Action.CREATE, Action.UPDATE)


def _put_groups(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for config in decode_body(request.body, GroupConfigList, is_request=True).group_config_list:
        yield group_permission(config.group_name, Action.CREATE, Action.UPDATE)


def _clone(request: RemotingCommand, _: str) -> Iterable[Permission]:
    fields = request.ext_fields
    yield group_permission(fields.get("srcGroup", ""), *_GET)
    yield group_permission(fields.get("destGroup", ""), *_UPDATE)
    if topic := fields.get("topic"):
        yield topic_permission(topic, *_UPDATE)


def _pop(request: RemotingCommand, _: str) -> Iterable[Permission]:
    """Yield the permissions of a pop, an acknowledgement and the like; a retry topic counts as its topic."""
    fields = request.ext_fields
    group = fields.get("consumerGroup", "")
    yield group_permission(group, *_SUB)
    yield topic_permission(normal_topic(fields.get("topic", ""), group), *_SUB)


def _assignment(request: RemotingCommand, _: str) -> Iterable[Permission]:
    body = decode_body(request.body, QueryAssignment, is_request=True)
    yield group_permission(body.consumer_group, *_SUB)
    yield topic_permission(body.topic, *_SUB)


def _request_mode(request: RemotingCommand, _: str) -> Iterable[Permission]:
    body = decode_body(request.body, MessageRequestMode, is_request=True)
    yield group_permission(body.consumer_group, *_UPDATE)
    yield topic_permission(body.topic, *_UPDATE)


def _ack_batch(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for ack in decode_body(request.body, BatchAcks, is_request=True).acks:
        yield group_permission(ack.c, *_SUB)
        yield topic_permission(ack.t, *_SUB)


def _subscribe_lite(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for change in decode_body(request.body, LiteSubscriptions, is_request=True).subscription_set:
        yield group_permission(change.group, *_SUB)
        yield topic_permission(change.topic, *_SUB)


def _delete_topics(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for topic in decode_body(request.body, TopicList, is_request=True).topic_list:
        yield topic_permission(topic, Action.DELETE)


def _delete_groups(request: RemotingCommand, _: str) -> Iterable[Permission]:
    for group in decode_body(request.body, GroupsToDelete, is_request=True).group_name_list:
        yield group_permission(group, Action.DELETE)


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
    **dict.fromkeys(
        (
            _CODE.POP_MESSAGE, _CODE.ACK_MESSAGE, _CODE.CHANGE_MESSAGE_INVISIBLETIME, _CODE.NOTIFICATION,
            _CODE.POLLING_INFO, _CODE.PEEK_MESSAGE, _CODE.POP_LITE_MESSAGE,
        ),
        _pop,
    ),
    _CODE.BATCH_ACK_MESSAGE: _ack_batch,
    _CODE.LITE_SUBSCRIPTION_CTL: _subscribe_lite,
    _CODE.GET_PARENT_TOPIC_INFO: _topic(*_GET),
    _CODE.GET_LITE_TOPIC_INFO: _topic(*_GET, field="parentTopic"),
    _CODE.GET_LITE_CLIENT_INFO: _of(topic="parentTopic", topic_actions=_GET, group="group", group_actions=_GET),
    _CODE.GET_LITE_GROUP_INFO: _group(*_GET, field="group"),
    _CODE.TRIGGER_LITE_DISPATCH: _group(*_UPDATE, field="group"),
    _CODE.QUERY_ASSIGNMENT: _assignment,
    _CODE.SET_MESSAGE_REQUEST_MODE: _request_mode,
    _CODE.QUERY_MESSAGE: _topic(*_READ),
    _CODE.VIEW_MESSAGE_BY_ID: _cluster(*_GET),
    _CODE.QUERY_CONSUMER_OFFSET: _both(_READ, group="consumerGroup"),
    _CODE.UPDATE_CONSUMER_OFFSET: _both(_COMMIT, group="consumerGroup"),
    _CODE.SEARCH_OFFSET_BY_TIMESTAMP: _topic(*_READ),
    _CODE.GET_MAX_OFFSET: _topic(*_READ),
    _CODE.GET_MIN_OFFSET: _topic(*_READ),
    _CODE.GET_EARLIEST_MSG_STORETIME: _topic(*_READ),
    _CODE.QUERY_CONSUME_QUEUE: _queue_units,
    _CODE.HEART_BEAT: _heartbeat,
    _CODE.UNREGISTER_CLIENT: _unregister,
    _CODE.GET_CONSUMER_LIST_BY_GROUP: _group(*_READ, field="consumerGroup"),
    _CODE.LOCK_BATCH_MQ: _lock,
    _CODE.UNLOCK_BATCH_MQ: _lock,
    _CODE.CHECK_CLIENT_CONFIG: _check_client,
    _CODE.UPDATE_AND_CREATE_TOPIC: _topic(Action.CREATE),
    _CODE.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    _CODE.DELETE_TOPIC_IN_BROKER: _topic(Action.DELETE),
    _CODE.DELETE_TOPIC_IN_BROKER_LIST: _delete_topics,
    _CODE.DELETE_SUBSCRIPTION_GROUP_LIST: _delete_groups,
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
    _CODE.RESUME_CHECK_HALF_MESSAGE: _cluster(*_UPDATE),  # names a message by physical offset
    **dict.fromkeys(
        (
            _CODE.UPDATE_BROKER_CONFIG, _CODE.CLEAN_EXPIRED_CONSUMEQUEUE, _CODE.CLEAN_UNUSED_TOPIC,
            _CODE.DELETE_EXPIRED_COMMITLOG, _CODE.AUTH_CREATE_USER, _CODE.AUTH_UPDATE_USER, _CODE.AUTH_DELETE_USER,
            _CODE.AUTH_CREATE_ACL, _CODE.AUTH_UPDATE_ACL, _CODE.AUTH_DELETE_ACL, _CODE.RESET_MASTER_FLUSH_OFFSET,
            _CODE.PROXIED_CLIENTS,
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
            _CODE.GET_BROKER_LITE_INFO,
            _CODE.AUTH_GET_USER, _CODE.AUTH_LIST_USER, _CODE.AUTH_GET_ACL, _CODE.AUTH_LIST_ACL,
        ),
        _cluster(*_GET),
    ),
}  # fmt: skip

CHANGES: Final = frozenset(
    {
        _CODE.UPDATE_AND_CREATE_TOPIC, _CODE.UPDATE_AND_CREATE_TOPIC_LIST, _CODE.DELETE_TOPIC_IN_BROKER,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        _CODE.DELETE_SUBSCRIPTIONGROUP, _CODE.DELETE_TOPIC_IN_BROKER_LIST, _CODE.DELETE_SUBSCRIPTION_GROUP_LIST,
        _CODE.UPDATE_BROKER_CONFIG, _CODE.GET_BROKER_CONFIG,
        _CODE.CLEAN_EXPIRED_CONSUMEQUEUE, _CODE.CLEAN_UNUSED_TOPIC, _CODE.DELETE_EXPIRED_COMMITLOG,
        _CODE.INVOKE_BROKER_TO_RESET_OFFSET, _CODE.CLONE_GROUP_OFFSET, _CODE.SET_MESSAGE_REQUEST_MODE,
        _CODE.RESUME_CHECK_HALF_MESSAGE, _CODE.CONSUME_MESSAGE_DIRECTLY,
    }
)  # fmt: skip
"""Requests of administrators that change a broker or show its settings: local only, unless there are users."""


def rules_of_light_queues() -> dict[int, Rule]:
    """Create the rules of sends to light queues: Pub also on each light queue in a message.

    In the original a permission on any topic lets a sender put messages into the light queue of any device.
    """

    def sends(code: int, field: str) -> Rule:
        def list_permissions(request: RemotingCommand, cluster: str) -> Iterable[Permission]:
            yield from RULES[code](request, cluster)
            text = request.ext_fields.get(field, "")
            if PROPERTY_INNER_MULTI_DISPATCH in text:
                for name in dict.fromkeys(decode_lmq_names(text.encode("utf-8", "replace"))):
                    yield topic_permission(name, *_PUB)

        return list_permissions

    return {
        _CODE.SEND_MESSAGE: sends(_CODE.SEND_MESSAGE, "properties"),
        _CODE.SEND_MESSAGE_V2: sends(_CODE.SEND_MESSAGE_V2, "i"),
        _CODE.SEND_REPLY_MESSAGE: sends(_CODE.SEND_REPLY_MESSAGE, "properties"),
        _CODE.SEND_REPLY_MESSAGE_V2: sends(_CODE.SEND_REPLY_MESSAGE_V2, "i"),
    }


def rules_by_physical_offset(message_at: Callable[[int], StoredMessage | None]) -> dict[int, Rule]:
    """Create the rules of requests with a physical offset, which check the topic of the message there.

    Otherwise any consumer could read all messages: a send-back copies a message into the group's retry topic. And any
    sender could end all transactions.

    Args:
        message_at: reads the message at a physical offset.
    """

    def of_group(code: int, read_location: Callable[[RemotingCommand], tuple[str, int]]) -> Rule:
        def list_permissions(request: RemotingCommand, cluster: str) -> Iterable[Permission]:
            yield from RULES[code](request, cluster)
            group, physical_offset = read_location(request)
            message = message_at(physical_offset)
            if message is not None:
                yield topic_permission(normal_topic(message.topic, group), *_SUB)

        return list_permissions

    def ends(request: RemotingCommand, cluster: str) -> Iterable[Permission]:
        yield from _end_transaction(request, cluster)
        half = message_at(read_fields(request, EndTransaction).commit_log_offset)
        if half is not None:
            yield topic_permission(half.properties.get(REAL_TOPIC, ""), *_PUB)

    return {
        _CODE.END_TRANSACTION: ends,
        _CODE.CONSUMER_SEND_MSG_BACK: of_group(_CODE.CONSUMER_SEND_MSG_BACK, _read_send_back),
        _CODE.CONSUME_MESSAGE_DIRECTLY: of_group(_CODE.CONSUME_MESSAGE_DIRECTLY, _read_consume_directly),
    }


def _read_send_back(request: RemotingCommand) -> tuple[str, int]:
    fields = read_fields(request, SendBackFields)
    return fields.group, fields.offset


def _read_consume_directly(request: RemotingCommand) -> tuple[str, int]:
    fields = read_fields(request, ConsumeDirectly)
    try:
        return fields.consumer_group, decode_message_id(fields.msg_id or "")[1]
    except DecodeError:  # the handler reports the error
        return fields.consumer_group, -1
