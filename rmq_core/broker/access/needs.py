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
from rmq_core.store.commitlog.light_places import named_light_queues
from rmq_formats.codecs.layout import PROPERTY_LIGHT_NAMES
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import DecodeError

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


def _queue_units(request: RemotingCommand, _: str) -> Iterable[Need]:
    yield topic_need(request.ext_fields.get("topic", ""), *_GET)
    if group := request.ext_fields.get("consumerGroup"):  # whose subscription is told
        yield group_need(group, *_GET)


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


def _pop(request: RemotingCommand, _: str) -> Iterable[Need]:
    """Name the needs of a pop, an acknowledgement and the like; a retry topic of the group is that of its topic."""
    fields = request.ext_fields
    group = fields.get("consumerGroup", "")
    yield group_need(group, *_SUB)
    yield topic_need(normal_topic(fields.get("topic", ""), group), *_SUB)


def _assignment(request: RemotingCommand, _: str) -> Iterable[Need]:
    asked = decode_body(request.body, QueryAssignment, is_request=True)
    yield group_need(asked.consumer_group, *_SUB)
    yield topic_need(asked.topic, *_SUB)


def _request_mode(request: RemotingCommand, _: str) -> Iterable[Need]:
    asked = decode_body(request.body, MessageRequestMode, is_request=True)
    yield group_need(asked.consumer_group, *_UPDATE)
    yield topic_need(asked.topic, *_UPDATE)


def _ack_batch(request: RemotingCommand, _: str) -> Iterable[Need]:
    for one in decode_body(request.body, BatchAcks, is_request=True).acks:
        yield group_need(one.c, *_SUB)
        yield topic_need(one.t, *_SUB)


def _subscribe_lite(request: RemotingCommand, _: str) -> Iterable[Need]:
    for one in decode_body(request.body, LiteSubscriptions, is_request=True).subscription_set:
        yield group_need(one.group, *_SUB)
        yield topic_need(one.topic, *_SUB)


def _delete_topics(request: RemotingCommand, _: str) -> Iterable[Need]:
    for topic in decode_body(request.body, TopicList, is_request=True).topic_list:
        yield topic_need(topic, Action.DELETE)


def _delete_groups(request: RemotingCommand, _: str) -> Iterable[Need]:
    for group in decode_body(request.body, GroupsToDelete, is_request=True).group_name_list:
        yield group_need(group, Action.DELETE)


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
    _CODE.RESUME_CHECK_HALF_MESSAGE: _cluster(*_UPDATE),  # it names a message by its place
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
"""Requests of administrators that change a broker, or show its settings: without users, not from other machines."""


def rules_of_light_queues() -> dict[int, Rule]:
    """Make the rules of sends where there are light queues: Pub also on each one that a message names.

    In the original a right on any topic lets a sender put messages into the queue of any device.
    """

    def sends(code: int, field: str) -> Rule:
        def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
            yield from RULES[code](request, cluster)
            text = request.ext_fields.get(field, "")
            if PROPERTY_LIGHT_NAMES in text:
                for name in dict.fromkeys(named_light_queues(text.encode("utf-8", "replace"))):
                    yield topic_need(name, *_PUB)

        return needs

    return {
        _CODE.SEND_MESSAGE: sends(_CODE.SEND_MESSAGE, "properties"),
        _CODE.SEND_MESSAGE_V2: sends(_CODE.SEND_MESSAGE_V2, "i"),
        _CODE.SEND_REPLY_MESSAGE: sends(_CODE.SEND_REPLY_MESSAGE, "properties"),
        _CODE.SEND_REPLY_MESSAGE_V2: sends(_CODE.SEND_REPLY_MESSAGE_V2, "i"),
    }


def rules_by_place(message_at: Callable[[int], StoredMessage | None]) -> dict[int, Rule]:
    """Make the rules of requests that name a message by its place: its own topic counts, too, and not what they say.

    Else who consumes anything could read everything: a send-back copies the message into the group's retry topic. And
    who sends anything could end the transactions of all.

    Args:
        message_at: gives the message at a physical offset.
    """

    def of_group(code: int, named_in: Callable[[RemotingCommand], tuple[str, int]]) -> Rule:
        def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
            yield from RULES[code](request, cluster)
            group, place = named_in(request)
            message = message_at(place)
            if message is not None:
                yield topic_need(normal_topic(message.topic, group), *_SUB)

        return needs

    def ends(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        yield from _end_transaction(request, cluster)
        half = message_at(read_fields(request, EndTransaction).commit_log_offset)
        if half is not None:
            yield topic_need(half.properties.get(REAL_TOPIC, ""), *_PUB)

    return {
        _CODE.END_TRANSACTION: ends,
        _CODE.CONSUMER_SEND_MSG_BACK: of_group(_CODE.CONSUMER_SEND_MSG_BACK, _sent_back),
        _CODE.CONSUME_MESSAGE_DIRECTLY: of_group(_CODE.CONSUME_MESSAGE_DIRECTLY, _consumed),
    }


def _sent_back(request: RemotingCommand) -> tuple[str, int]:
    asked = read_fields(request, SendBackFields)
    return asked.group, asked.offset


def _consumed(request: RemotingCommand) -> tuple[str, int]:
    asked = read_fields(request, ConsumeDirectly)
    try:
        return asked.consumer_group, decode_message_id(asked.msg_id or "")[1]
    except DecodeError:  # the handler tells it
        return asked.consumer_group, -1
