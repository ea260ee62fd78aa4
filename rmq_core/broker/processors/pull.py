"""Pull requests (codes 11, 361): messages of a queue, with long polling where there are none yet.

Source: ``PullMessageProcessor``, ``DefaultPullMessageResultHandler``.
"""

from dataclasses import replace
from typing import Final

from msgspec import structs

from rmq_core.broker.cluster.slave_refusals import BUSY
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.held_pulls import HeldPull, HeldPulls
from rmq_core.broker.tables.subscription_filter import EVERYTHING, Filter, filter_of, is_tag_type, subscription
from rmq_core.remoting.bodies import SubscriptionData, SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.failure import failure
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import PullMessage
from rmq_core.store.results import GetResult, GetStatus
from rmq_formats.sql92 import SqlError

_MOST_MESSAGES: Final = 1024  # of one pull: Java's consumers ask for no more, and a filter is asked for each
_COMMITS: Final = 1  # bits of a pull's sys_flag
_MAY_WAIT: Final = 2
_BRINGS_SUBSCRIPTION: Final = 4
_OFFSET_RESET: Final = "OFFSET_RESET"
_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
_WITHOUT_MESSAGES: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


class Pulls:
    """Handles PULL_MESSAGE requests."""

    def __init__(self, state: BrokerState, held: HeldPulls) -> None:
        self._state = state
        self._held = held

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361): a queue's messages; None while the pull is held."""
        if self._state.config.is_slave and not self._state.config.slave_read_enable:
            return request.response(int(ResponseCode.SYSTEM_BUSY), BUSY)
        asked = read_fields(request, PullMessage)
        if asked.lite_topic:  # of the topic: its light queue is pulled as any
            self._checked(asked, connection)
            asked = structs.replace(asked, topic=parse_lite_queue(asked.topic, asked.lite_topic))
        return self._pull(request, connection, asked, may_wait=asked.sys_flag & _MAY_WAIT != 0)

    def _pull(
        self,
        request: RemotingCommand,
        connection: Connection,
        asked: PullMessage,
        *,
        may_wait: bool,
        again: bool = False,
    ) -> RemotingCommand | None:
        state = self._state
        group, topic = self._checked(asked, connection)
        wanted = self._filter(asked, group)
        reset = state.offsets.take_reset(asked.topic, asked.consumer_group, asked.queue_id)
        if reset is not None and state.config.use_server_side_reset_offset:
            return self._reset(request, asked, reset)
        times = state.stats.times
        begin_s = times.now_s()
        result = state.store.get(
            asked.topic, asked.queue_id, asked.queue_offset, max(1, min(asked.max_msg_nums, _MOST_MESSAGES)),
            tags_codes=wanted.tags_codes, matches=wanted.matches, may_match_unit=wanted.may_match_unit,
        )  # fmt: skip
        times.end_get(begin_s)
        state.stats.count(stats.GET_FOUND_TIMES if result.slices else stats.GET_MISS_TIMES, "", 1)
        if asked.sys_flag & _COMMITS and not again:
            state.offsets.commit(asked.topic, asked.consumer_group, asked.queue_id, asked.commit_offset)
        code = _CODES[result.status]
        if asked.queue_offset != 0 and result.status in _WITHOUT_MESSAGES:
            code = ResponseCode.PULL_OFFSET_MOVED
        if state.config.is_slave:
            code = self._slave_code(code, result)
        if code is ResponseCode.PULL_NOT_FOUND and may_wait and self._held.count < state.config.max_held_pulls:
            self._hold(request, connection, asked, wanted)
            return None
        return self._answer(request, asked, result, code, (topic, group))

    def _answer(
        self, request: RemotingCommand, asked: PullMessage, result: GetResult, code: ResponseCode,
        configs: tuple[TopicConfig, SubscriptionGroupConfig],
    ) -> RemotingCommand:  # fmt: skip
        topic, group = configs
        self._state.offsets.note_pulled(asked.topic, asked.consumer_group, asked.queue_id, result.next_offset)
        fields = {
            "suggestWhichBrokerId": str(self._suggested(group, result)),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "topicSysFlag": str(topic.topic_sys_flag),
            "groupSysFlag": str(group.group_sys_flag),
        }
        slices = result.slices
        if slices:
            key = stats.pull_key(asked.topic, asked.consumer_group)
            self._state.stats.count_messages(stats.GOT, key, result.message_count, result.size)
        body = b"" if not slices else slices[0] if len(slices) == 1 else b"".join(slices)
        return request.response(int(code), result.status.value, fields, body)

    def _suggested(self, group: SubscriptionGroupConfig, result: GetResult) -> int:
        """The broker id that the consumer is to pull from next. Source: ``composeResponseHeader``."""
        state = self._state
        if not state.config.slave_read_enable or (state.replication.is_following and not result.is_far):
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.is_far else group.broker_id

    def _slave_code(self, code: ResponseCode, result: GetResult) -> ResponseCode:
        """Response code of a slave: it refers to its master, if that is connected, for what it does not have.

        Without it, a consumer that is ahead of this slave waits here: the original has it ask again and again.

        Source: ``composeResponseHeader``, ``DefaultPullMessageResultHandler#handle``.
        """
        state = self._state
        if state.replication.is_following:
            to_master = result.status is not GetStatus.FOUND and not result.is_far
            return ResponseCode.PULL_RETRY_IMMEDIATELY if to_master else code
        if code is ResponseCode.PULL_OFFSET_MOVED and not state.store.config.offset_check_in_slave:
            is_ahead = result.status is GetStatus.OFFSET_OVERFLOW_BADLY
            return ResponseCode.PULL_NOT_FOUND if is_ahead else ResponseCode.PULL_RETRY_IMMEDIATELY
        return code

    def _reset(self, request: RemotingCommand, asked: PullMessage, offset: int) -> RemotingCommand:
        store = self._state.store
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": str(store.min_offset(asked.topic, asked.queue_id)),
            "maxOffset": str(store.max_offset(asked.topic, asked.queue_id)),
        }
        return request.response(int(ResponseCode.PULL_OFFSET_MOVED), _OFFSET_RESET, fields)

    def _hold(self, request: RemotingCommand, connection: Connection, asked: PullMessage, wanted: Filter) -> None:
        config = self._state.config
        check = self._state.rights.withdrawal_check(request, connection)
        wait_ms = asked.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_ms
        request.fields, request.body = {}, b""  # views of the receive buffer, which a held pull would keep for long

        def answer() -> None:
            try:
                check()
                response = self._pull(request, connection, asked, may_wait=False, again=True)
            except ResponseError as error:
                response = failure(request, error)
            if response is not None:
                connection.send(response)

        size = WAITING_BYTES + len(asked.subscription or "") + wanted.own_bytes
        deadline_ms = self._state.steady_ms() + max(0, wait_ms)
        self._held.hold(
            asked.topic, asked.queue_id, HeldPull(connection, wanted, asked.queue_offset, deadline_ms, answer, size)
        )

    def _checked(self, asked: PullMessage, connection: Connection) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Group and topic, if the group may pull the topic; else raises the error response."""
        state = self._state
        config = state.config
        if not config.broker_permission & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pulling message is forbidden")
        group = state.groups.table.get(asked.consumer_group) or state.groups.find(
            asked.consumer_group, config.auto_create_subscription_group
        )
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{asked.consumer_group}] does not exist, {_HELP}",
            )
        if not group.consume_enable:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {asked.consumer_group}")
        topic = state.topics.table.get(asked.topic) or state.topics.get(asked.topic)
        if topic is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{asked.topic}] not exist, apply first please! {_HELP}"
            )
        if not topic.perm & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{asked.topic}] pulling message is forbidden")
        if not 0 <= asked.queue_id < topic.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{asked.queue_id}] is illegal, topic:[{asked.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{connection.remote_address}]",
            )
        return group, topic

    def _filter(self, asked: PullMessage, group: SubscriptionGroupConfig) -> Filter:
        """The filter of a pull's subscription; raises the error response if that is not known."""
        if asked.sys_flag & _BRINGS_SUBSCRIPTION:
            check_expression_size(len(asked.subscription or ""), self._state.config)
            try:
                one = subscription(asked.topic, asked.subscription, asked.expression_type, asked.sub_version)
            except ValueError as error:
                raise ResponseError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from error
        else:
            one = self._known_subscription(asked, group)
        if is_tag_type(one.expression_type):
            return filter_of(one)
        found = _brought_filter(one) if asked.sys_flag & _BRINGS_SUBSCRIPTION else self._registered_filter(asked)
        config = self._state.config
        if not config.enable_property_filter:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {one.expression_type}",
            )
        if config.filter_support_retry and asked.topic.startswith(names.RETRY_PREFIX):
            return replace(found, matches=self._state.filters.matches_before_retry(asked.topic))
        return found

    def _registered_filter(self, asked: PullMessage) -> Filter:
        """The filter that the group's heartbeats have registered; raises the error response if there is none."""
        registered = self._state.filters.get(asked.topic, asked.consumer_group)
        if registered is None:
            raise ResponseError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if registered.data.client_version < asked.sub_version:
            raise ResponseError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return registered.filter

    def _known_subscription(self, asked: PullMessage, group: SubscriptionGroupConfig) -> SubscriptionData:
        """The subscription in the group's heartbeats; raises the error response if there is none."""
        members = self._state.consumers.groups.get(asked.consumer_group)
        if members is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{_HELP}")
        if not group.consume_broadcast_enable and members.is_broadcasting:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{asked.consumer_group}] can not consume by broadcast way",
            )
        one = members.subscriptions.get(asked.topic)
        if one is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{_HELP}")
        if one.sub_version < asked.sub_version:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return one


def check_expression_size(size: int, config: BrokerConfig) -> None:
    """Refuse expressions of too many characters.

    Raises:
        ResponseError: the error response.
    """
    if size > config.max_expression_chars:
        remark = (
            f"an expression of {size} characters, which is more than maxExpressionChars={config.max_expression_chars}"
        )
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


def _brought_filter(one: SubscriptionData) -> Filter:
    """The filter of an expression that comes with the pull; one that does not compile lets all through.

    Source: ``ConsumerFilterManager#build``, whose null the original asserts away.
    """
    try:
        return filter_of(one)
    except SqlError:
        return EVERYTHING
