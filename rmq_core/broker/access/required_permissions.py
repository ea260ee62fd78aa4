"""Permissions that requests require: one table of request codes, for the broker and for the calls of a proxy.

A rule has two halves: the names of topics and groups in a request of the remoting protocol, each with its role, and
the permission that a name of each role requires. A proxy reads the names from its own calls.

The rules are those of RocketMQ 5.3.3 where it has any (``DefaultAuthorizationContextBuilder`` and the annotations of
header classes). For some requests this table requires a permission on the cluster, a topic or a group where RocketMQ
requires a login alone: changes of settings, of groups and of lists of topics, tables of all topics, groups and offsets,
lite pulls, replies and checks of subscriptions. The message at an offset (33) may be of any topic, and the end of a
transaction may name no topic: both require a permission on the cluster.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from rmq_core.broker.access.policies import Action, Permission, cluster_permission, group_permission, topic_permission
from rmq_core.remoting.bodies.clients import CheckClientBody, HeartbeatData, LockBatchRequest
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import (
    GroupConfigList,
    GroupsToDelete,
    MessageRequestMode,
    SubscriptionGroupConfig,
    TopicConfigList,
)
from rmq_core.remoting.bodies.pop import BatchAcks, LiteSubscriptions, QueryAssignment
from rmq_core.remoting.bodies.routes import TopicList
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import normal_topic
from rmq_core.remoting.requests import ConsumeDirectly, EndTransaction, SendBackFields
from rmq_core.store.commitlog.lmq_offsets import decode_lmq_names
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_REAL_TOPIC
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import DecodeError

_Body = TypeVar("_Body")
Names = Iterable[tuple[str, str]]
"""Names of topics, groups and the cluster, each after its role."""
Rule = Callable[[RemotingCommand, str], Iterable[Permission]]
"""Returns all permissions that a request requires; arguments are the request and the cluster's name."""
PermissionOf = Callable[[str], Permission]

TOPIC: Final = "topic"
GROUP: Final = "group"
CLUSTER: Final = "cluster"
_SOURCE: Final = "source group"
_RETRY_TOPIC: Final = "retry topic"
_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_GET: Final = (Action.GET,)
_UPDATE: Final = (Action.UPDATE,)
_READ: Final = (Action.SUB, Action.GET)
_CREATE_OR_UPDATE: Final = (Action.CREATE, Action.UPDATE)


@dataclass(frozen=True, slots=True)
class NamedRule:
    """Rule that reads the names in a request, and makes one permission for each name by the name's role."""

    names: Callable[[RemotingCommand, str], Names]
    permissions: Mapping[str, PermissionOf]

    def __call__(self, request: RemotingCommand, cluster: str) -> Iterator[Permission]:
        return self.permissions_on(self.names(request, cluster))

    def permissions_on(self, names: Names) -> Iterator[Permission]:
        return (self.permissions[role](name) for role, name in names)


def _topic(*actions: Action, role: str = TOPIC) -> dict[str, PermissionOf]:
    return {role: lambda name: topic_permission(name, *actions)}


def _group(*actions: Action, role: str = GROUP) -> dict[str, PermissionOf]:
    return {role: lambda name: group_permission(name, *actions)}


def _topic_and_group(*actions: Action) -> dict[str, PermissionOf]:
    return _topic(*actions) | _group(*actions)


def _cluster(*actions: Action) -> dict[str, PermissionOf]:
    return {CLUSTER: lambda name: cluster_permission(name, *actions)}


# --- names in requests ------------------------------------------------------------------
def _cluster_names(_: RemotingCommand, cluster: str) -> Names:
    return ((CLUSTER, cluster),)


def _from_fields(
    *, topic: str = "", group: str = "", has_optional_topic: bool = False, has_optional_group: bool = False
) -> Callable[[RemotingCommand, str], Names]:
    """Read a topic, a group, or both, from the fields of these names; a missing one is the empty name.

    A missing optional topic means all topics of the group.
    """

    def names(request: RemotingCommand, _: str) -> Names:
        fields = request.ext_fields
        if topic and (fields.get(topic) or not has_optional_topic):
            yield TOPIC, fields.get(topic, "")
        if group and (fields.get(group) or not has_optional_group):
            yield GROUP, fields.get(group, "")

    return names


def _send_names(field: str) -> Callable[[RemotingCommand, str], Names]:
    """Read the topic of a send; one to a retry topic requires Sub on its group."""

    def names(request: RemotingCommand, _: str) -> Names:
        topic = request.ext_fields.get(field, "")
        return ((_RETRY_TOPIC if topic.startswith("%RETRY%") else TOPIC, topic),)

    return names


def _topic_or_cluster_names(request: RemotingCommand, cluster: str) -> Names:
    topic = request.ext_fields.get("topic", "")
    return ((TOPIC, topic) if topic else (CLUSTER, cluster),)


def _pop_names(request: RemotingCommand, _: str) -> Names:
    """Read the names of a pop, an acknowledgement and the like; a retry topic counts as its topic."""
    group = request.ext_fields.get("consumerGroup", "")
    yield GROUP, group
    yield TOPIC, normal_topic(request.ext_fields.get("topic", ""), group)


def _clone_names(request: RemotingCommand, _: str) -> Names:
    fields = request.ext_fields
    yield _SOURCE, fields.get("srcGroup", "")
    yield GROUP, fields.get("destGroup", "")
    if topic := fields.get("topic"):
        yield TOPIC, topic


def _from_body(body_type: type[_Body], names_of: Callable[[_Body], Names]) -> Callable[[RemotingCommand, str], Names]:
    return lambda request, _: names_of(decode_body(request.body, body_type, is_request=True))


def _heartbeat_names(data: HeartbeatData) -> Names:
    for consumer in data.consumer_data_set:
        yield GROUP, consumer.group_name
        for subscription in consumer.subscription_data_set or ():
            yield TOPIC, subscription.topic


def _lock_names(body: LockBatchRequest) -> Names:
    yield GROUP, body.consumer_group
    for topic in {queue.topic for queue in body.mq_set}:
        yield TOPIC, topic


def _ack_names(body: BatchAcks) -> Names:
    for ack in body.acks:
        yield GROUP, ack.c
        yield TOPIC, ack.t


def _lite_subscription_names(body: LiteSubscriptions) -> Names:
    for change in body.subscription_set:
        yield GROUP, change.group
        yield TOPIC, change.topic


def _assignment_names(body: QueryAssignment | MessageRequestMode) -> Names:
    yield GROUP, body.consumer_group
    yield TOPIC, body.topic


_TOPIC_FIELD: Final = _from_fields(topic="topic")
_CONSUMER: Final = _from_fields(topic="topic", group="consumerGroup")
_CONSUMER_OF_ALL: Final = _from_fields(topic="topic", group="consumerGroup", has_optional_topic=True)
_GROUP_FIELD: Final = _from_fields(group="group")
_CONSUMER_GROUP: Final = _from_fields(group="consumerGroup")
_LOCK_NAMES: Final = _from_body(LockBatchRequest, _lock_names)
_SEND_PERMISSIONS: Final = _topic(*_PUB) | _topic(*_SUB, role=_RETRY_TOPIC)

_CODE = RequestCode
_POP_CODES: Final = (
    _CODE.POP_MESSAGE, _CODE.ACK_MESSAGE, _CODE.CHANGE_MESSAGE_INVISIBLETIME, _CODE.NOTIFICATION, _CODE.POLLING_INFO,
    _CODE.PEEK_MESSAGE, _CODE.POP_LITE_MESSAGE,
)  # fmt: skip
_CLUSTER_CHANGES: Final = (
    _CODE.UPDATE_BROKER_CONFIG, _CODE.CLEAN_EXPIRED_CONSUMEQUEUE, _CODE.CLEAN_UNUSED_TOPIC,
    _CODE.DELETE_EXPIRED_COMMITLOG, _CODE.AUTH_CREATE_USER, _CODE.AUTH_UPDATE_USER, _CODE.AUTH_DELETE_USER,
    _CODE.AUTH_CREATE_ACL, _CODE.AUTH_UPDATE_ACL, _CODE.AUTH_DELETE_ACL, _CODE.RESET_MASTER_FLUSH_OFFSET,
    _CODE.PROXIED_CLIENTS,
)  # fmt: skip
_CLUSTER_QUERIES: Final = (
    _CODE.GET_ALL_TOPIC_CONFIG, _CODE.GET_BROKER_CONFIG, _CODE.GET_BROKER_RUNTIME_INFO, _CODE.GET_ALL_CONSUMER_OFFSET,
    _CODE.GET_ALL_DELAY_OFFSET, _CODE.GET_TIMER_CHECK_POINT, _CODE.GET_TIMER_METRICS,
    _CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _CODE.GET_PRODUCER_CONNECTION_LIST,
    _CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _CODE.VIEW_BROKER_STATS_DATA, _CODE.GET_BROKER_CONSUME_STATS,
    _CODE.GET_ALL_PRODUCER_INFO, _CODE.GET_ALL_MESSAGE_REQUEST_MODE, _CODE.GET_BROKER_HA_STATUS,
    _CODE.GET_BROKER_LITE_INFO, _CODE.AUTH_GET_USER, _CODE.AUTH_LIST_USER, _CODE.AUTH_GET_ACL, _CODE.AUTH_LIST_ACL,
)  # fmt: skip
RULES: Final[dict[int, NamedRule]] = {
    code: NamedRule(*rule)
    for code, rule in {
        _CODE.SEND_MESSAGE: (_send_names("topic"), _SEND_PERMISSIONS),
        _CODE.SEND_MESSAGE_V2: (_send_names("b"), _SEND_PERMISSIONS),
        _CODE.SEND_BATCH_MESSAGE: (_send_names("b"), _SEND_PERMISSIONS),
        _CODE.SEND_REPLY_MESSAGE: (_send_names("topic"), _SEND_PERMISSIONS),
        _CODE.SEND_REPLY_MESSAGE_V2: (_send_names("b"), _SEND_PERMISSIONS),
        _CODE.RECALL_MESSAGE: (_TOPIC_FIELD, _topic(*_PUB)),
        _CODE.END_TRANSACTION: (_topic_or_cluster_names, _topic(*_PUB) | _cluster(*_UPDATE)),
        _CODE.CONSUMER_SEND_MSG_BACK: (_GROUP_FIELD, _topic_and_group(*_SUB)),
        _CODE.PULL_MESSAGE: (_CONSUMER, _topic_and_group(*_SUB)),
        _CODE.LITE_PULL_MESSAGE: (_CONSUMER, _topic_and_group(*_SUB)),
        **dict.fromkeys(_POP_CODES, (_pop_names, _topic_and_group(*_SUB))),
        _CODE.BATCH_ACK_MESSAGE: (_from_body(BatchAcks, _ack_names), _topic_and_group(*_SUB)),
        _CODE.LITE_SUBSCRIPTION_CTL: (_from_body(LiteSubscriptions, _lite_subscription_names), _topic_and_group(*_SUB)),
        _CODE.GET_PARENT_TOPIC_INFO: (_TOPIC_FIELD, _topic(*_GET)),
        _CODE.GET_LITE_TOPIC_INFO: (_from_fields(topic="parentTopic"), _topic(*_GET)),
        _CODE.GET_LITE_CLIENT_INFO: (_from_fields(topic="parentTopic", group="group"), _topic_and_group(*_GET)),
        _CODE.GET_LITE_GROUP_INFO: (_GROUP_FIELD, _group(*_GET)),
        _CODE.TRIGGER_LITE_DISPATCH: (_GROUP_FIELD, _group(*_UPDATE)),
        _CODE.QUERY_ASSIGNMENT: (_from_body(QueryAssignment, _assignment_names), _topic_and_group(*_SUB)),
        _CODE.SET_MESSAGE_REQUEST_MODE: (_from_body(MessageRequestMode, _assignment_names), _topic_and_group(*_UPDATE)),
        _CODE.QUERY_MESSAGE: (_TOPIC_FIELD, _topic(*_READ)),
        _CODE.VIEW_MESSAGE_BY_ID: (_cluster_names, _cluster(*_GET)),
        _CODE.QUERY_CONSUMER_OFFSET: (_CONSUMER, _topic_and_group(*_READ)),
        _CODE.UPDATE_CONSUMER_OFFSET: (_CONSUMER, _topic_and_group(Action.SUB, Action.UPDATE)),
        _CODE.SEARCH_OFFSET_BY_TIMESTAMP: (_TOPIC_FIELD, _topic(*_READ)),
        _CODE.GET_MAX_OFFSET: (_TOPIC_FIELD, _topic(*_READ)),
        _CODE.GET_MIN_OFFSET: (_TOPIC_FIELD, _topic(*_READ)),
        _CODE.GET_EARLIEST_MSG_STORETIME: (_TOPIC_FIELD, _topic(*_READ)),
        # The response has the subscription of the group, if the request names one.
        _CODE.QUERY_CONSUME_QUEUE: (
            _from_fields(topic="topic", group="consumerGroup", has_optional_group=True),
            _topic_and_group(*_GET),
        ),
        _CODE.HEART_BEAT: (_from_body(HeartbeatData, _heartbeat_names), _topic_and_group(*_SUB)),
        _CODE.UNREGISTER_CLIENT: (_from_fields(group="consumerGroup", has_optional_group=True), _group(*_SUB)),
        _CODE.GET_CONSUMER_LIST_BY_GROUP: (_CONSUMER_GROUP, _group(*_READ)),
        _CODE.LOCK_BATCH_MQ: (_LOCK_NAMES, _topic_and_group(*_SUB)),
        _CODE.UNLOCK_BATCH_MQ: (_LOCK_NAMES, _topic_and_group(*_SUB)),
        _CODE.CHECK_CLIENT_CONFIG: (_from_body(CheckClientBody, lambda body: ((GROUP, body.group),)), _group(*_SUB)),
        _CODE.UPDATE_AND_CREATE_TOPIC: (_TOPIC_FIELD, _topic(Action.CREATE)),
        _CODE.UPDATE_AND_CREATE_TOPIC_LIST: (
            _from_body(TopicConfigList, lambda body: ((TOPIC, config.topic_name) for config in body.topic_config_list)),
            _topic(Action.CREATE),
        ),
        _CODE.DELETE_TOPIC_IN_BROKER: (_TOPIC_FIELD, _topic(Action.DELETE)),
        _CODE.DELETE_TOPIC_IN_BROKER_LIST: (
            _from_body(TopicList, lambda body: ((TOPIC, topic) for topic in body.topic_list)),
            _topic(Action.DELETE),
        ),
        _CODE.DELETE_SUBSCRIPTION_GROUP_LIST: (
            _from_body(GroupsToDelete, lambda body: ((GROUP, group) for group in body.group_name_list)),
            _group(Action.DELETE),
        ),
        _CODE.GET_TOPIC_CONFIG: (_TOPIC_FIELD, _topic(*_GET)),
        _CODE.GET_TOPIC_STATS_INFO: (_TOPIC_FIELD, _topic(*_GET)),
        _CODE.QUERY_TOPIC_CONSUME_BY_WHO: (_TOPIC_FIELD, _topic(*_GET)),
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
            _from_body(SubscriptionGroupConfig, lambda body: ((GROUP, body.group_name),)),
            _group(*_CREATE_OR_UPDATE),
        ),
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
            _from_body(GroupConfigList, lambda body: ((GROUP, config.group_name) for config in body.group_config_list)),
            _group(*_CREATE_OR_UPDATE),
        ),
        _CODE.DELETE_SUBSCRIPTIONGROUP: (_from_fields(group="groupName"), _group(Action.DELETE)),
        _CODE.GET_SUBSCRIPTIONGROUP_CONFIG: (_GROUP_FIELD, _group(*_GET)),
        _CODE.GET_CONSUMER_CONNECTION_LIST: (_CONSUMER_GROUP, _group(*_GET)),
        _CODE.GET_CONSUMER_RUNNING_INFO: (_CONSUMER_GROUP, _group(*_GET)),
        _CODE.CONSUME_MESSAGE_DIRECTLY: (_CONSUMER_OF_ALL, _topic_and_group(*_SUB)),
        _CODE.GET_CONSUME_STATS: (_CONSUMER_OF_ALL, _topic_and_group(*_GET)),
        _CODE.QUERY_TOPICS_BY_CONSUMER: (_GROUP_FIELD, _group(*_GET)),
        _CODE.QUERY_SUBSCRIPTION_BY_CONSUMER: (
            _from_fields(topic="topic", group="group", has_optional_topic=True),
            _topic_and_group(*_GET),
        ),
        _CODE.QUERY_CONSUME_TIME_SPAN: (_from_fields(topic="topic", group="group"), _topic_and_group(*_GET)),
        _CODE.INVOKE_BROKER_TO_RESET_OFFSET: (_from_fields(topic="topic", group="group"), _topic_and_group(*_UPDATE)),
        _CODE.CLONE_GROUP_OFFSET: (_clone_names, _group(*_GET, role=_SOURCE) | _topic_and_group(*_UPDATE)),
        _CODE.RESUME_CHECK_HALF_MESSAGE: (_cluster_names, _cluster(*_UPDATE)),  # names a message by its offset
        **dict.fromkeys(_CLUSTER_CHANGES, (_cluster_names, _cluster(*_UPDATE))),
        **dict.fromkeys(_CLUSTER_QUERIES, (_cluster_names, _cluster(*_GET))),
    }.items()
}

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


def lmq_send_rules() -> dict[int, Rule]:
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
        yield from RULES[_CODE.END_TRANSACTION](request, cluster)
        half = message_at(read_fields(request, EndTransaction).commit_log_offset)
        if half is not None:
            yield topic_permission(half.properties.get(PROPERTY_REAL_TOPIC, ""), *_PUB)

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
