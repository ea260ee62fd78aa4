"""Pull requests (codes 11, 361): messages of a queue, with long polling where there are none yet.

Source: ``PullMessageProcessor``, ``DefaultPullMessageResultHandler``.
"""

from dataclasses import replace
from typing import Final

from msgspec import structs

from rmq_core.broker.cluster.slave_sync import BUSY
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.parked_requests import ParkedRequest, PullLongPolling
from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.state import APPLY_FIRST, HELP, BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.subscription_filter import (
    EVERYTHING,
    Filter,
    compile_subscription,
    is_tag_type,
    subscription,
)
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import PullMessage
from rmq_core.store.results import GetResult, GetStatus
from rmq_formats.sql92 import SqlError

_MAX_MESSAGES: Final = 1024  # of one pull: maximum of Java's consumers; a filter runs for each message
_COMMIT_FLAG: Final = 1  # bits of a pull's sys_flag
_SUSPEND_FLAG: Final = 2
_SUBSCRIPTION_FLAG: Final = 4
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


class PullMessageProcessor:
    """Handler of PULL_MESSAGE requests."""

    def __init__(self, state: BrokerState, held: PullLongPolling) -> None:
        self._state = state
        self._parked_pulls = held

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Return messages of a queue (PULL_MESSAGE, 11; LITE_PULL_MESSAGE, 361); None while the request is parked."""
        if self._state.config.is_slave and not self._state.config.slave_read_enable:
            return request.response(int(ResponseCode.SYSTEM_BUSY), BUSY)
        fields = read_fields(request, PullMessage)
        if fields.lite_topic:  # checked first, as the permission is that of the parent topic
            self._check_permission(fields, connection)
            fields = structs.replace(fields, topic=parse_lite_queue(fields.topic, fields.lite_topic))
        return self._pull(request, connection, fields)

    def _pull(
        self, request: RemotingCommand, connection: Connection, fields: PullMessage, *, again: bool = False
    ) -> RemotingCommand | None:
        state, may_wait = self._state, not again and fields.sys_flag & _SUSPEND_FLAG
        group, topic = self._check_permission(fields, connection)
        message_filter = self._filter(fields, group)
        reset = state.offsets.pop_reset(fields.topic, fields.consumer_group, fields.queue_id)
        if reset is not None:
            return self._respond_reset(request, fields, reset)
        times = state.stats.times
        begin_s = times.now_s()
        result = state.store.get(
            fields.topic,
            fields.queue_id,
            fields.queue_offset,
            max(1, min(fields.max_msg_nums, _MAX_MESSAGES)),
            tags_codes=message_filter.tags_codes,
            matches=message_filter.matches,
            may_match_unit=message_filter.may_match_unit,
        )
        times.end_get(begin_s)
        state.stats.count(stats.GET_FOUND_TIMES if result.slices else stats.GET_MISS_TIMES, "", 1)
        if fields.sys_flag & _COMMIT_FLAG and not again:
            state.offsets.commit(fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
        code = _CODES[result.status]
        if fields.queue_offset != 0 and result.status in _WITHOUT_MESSAGES:
            code = ResponseCode.PULL_OFFSET_MOVED
        if state.config.is_slave:
            code = self._slave_code(code, result)
        if code is ResponseCode.PULL_NOT_FOUND and may_wait and self._park(request, connection, fields, message_filter):
            return None
        state.offsets.record_next_pull(fields.topic, fields.consumer_group, fields.queue_id, result.next_offset)
        ext_fields = {
            "suggestWhichBrokerId": str(self._suggest_broker_id(group, result)),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "topicSysFlag": str(topic.topic_sys_flag),
            "groupSysFlag": str(group.group_sys_flag),
        }
        slices = result.slices
        if slices:
            key = stats.pull_key(fields.topic, fields.consumer_group)
            state.stats.count_messages(stats.GOT, key, result.message_count, result.size)
        body = b"" if not slices else slices[0] if len(slices) == 1 else b"".join(slices)
        return request.response(int(code), result.status.value, ext_fields, body)

    def _suggest_broker_id(self, group: SubscriptionGroupConfig, result: GetResult) -> int:
        """Return the id of the broker for the consumer's next pull. Source: ``composeResponseHeader``."""
        state = self._state
        if not state.config.slave_read_enable or (state.replication.is_following and not result.is_far):
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.is_far else group.broker_id

    def _slave_code(self, code: ResponseCode, result: GetResult) -> ResponseCode:
        """Return the response code of a slave: for missing messages the slave refers to its connected master.

        Without a master, a consumer ahead of this slave waits; in the original it repeats its pulls.

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

    def _respond_reset(self, request: RemotingCommand, fields: PullMessage, offset: int) -> RemotingCommand:
        store = self._state.store
        ext_fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": str(store.min_offset(fields.topic, fields.queue_id)),
            "maxOffset": str(store.max_offset(fields.topic, fields.queue_id)),
        }
        return request.response(int(ResponseCode.PULL_OFFSET_MOVED), "OFFSET_RESET", ext_fields)

    def _park(
        self, request: RemotingCommand, connection: Connection, fields: PullMessage, message_filter: Filter
    ) -> bool:
        config = self._state.config
        wait_ms = fields.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_ms

        def pull_again(pull: ParkedRequest[tuple[str, int]], _: bool) -> RemotingCommand | None:
            return self._pull(pull.request, pull.connection, fields, again=True)

        return self._parked_pulls.park(
            ParkedRequest(
                (fields.topic, fields.queue_id),
                request,
                connection,
                self._state.steady_ms() + max(0, wait_ms),
                pull_again,
                fields.subscription,
                message_filter,
                next_offset=fields.queue_offset,
            )
        )

    def _check_permission(
        self, fields: PullMessage, connection: Connection
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Return group and topic, if the group may pull the topic. Raises ResponseError."""
        state = self._state
        config = state.config
        if not config.broker_permission & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{state.address}] pulling message is forbidden")
        group = state.groups.table.get(fields.consumer_group) or state.groups.find(
            fields.consumer_group, config.auto_create_subscription_group
        )
        if group is None:
            problem = f"subscription group [{fields.consumer_group}] does not exist, {HELP}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
        if not group.consume_enable:
            problem = f"subscription group no permission, {fields.consumer_group}"
            raise ResponseError(ResponseCode.NO_PERMISSION, problem)
        topic = state.topics.table.get(fields.topic) or state.require_topic(fields.topic, APPLY_FIRST)
        if not topic.perm & names.PERM_READ:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{fields.topic}] pulling message is forbidden")
        if not 0 <= fields.queue_id < topic.read_queue_nums:
            illegal_queue = f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}]"
            queue_count = f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            problem = f"{illegal_queue} {queue_count} consumer:[{connection.remote_address}]"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        return group, topic

    def _filter(self, fields: PullMessage, group: SubscriptionGroupConfig) -> Filter:
        """Return the filter of a pull's subscription. Raises ResponseError for an unknown subscription."""
        if fields.sys_flag & _SUBSCRIPTION_FLAG:
            check_expression_size(len(fields.subscription or ""), self._state.config)
            try:
                subscription_data = subscription(
                    fields.topic, fields.subscription, fields.expression_type, fields.sub_version
                )
            except ValueError as error:
                problem = "parse the consumer's subscription failed"
                raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, problem) from error
        else:
            subscription_data = self._get_subscription(fields, group)
        if is_tag_type(subscription_data.expression_type):
            return compile_subscription(subscription_data)
        has_subscription = fields.sys_flag & _SUBSCRIPTION_FLAG
        expression_filter = _compile_filter(subscription_data) if has_subscription else self._registered_filter(fields)
        config = self._state.config
        if not config.enable_property_filter:
            problem = f"The broker does not support consumer to filter message by {subscription_data.expression_type}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
        if config.filter_support_retry and fields.topic.startswith(names.RETRY_PREFIX):
            return replace(expression_filter, matches=self._state.filters.matches_before_retry(fields.topic))
        return expression_filter

    def _registered_filter(self, fields: PullMessage) -> Filter:
        """Return the filter registered by the group's heartbeats. Raises ResponseError without one."""
        registered = self._state.filters.get(fields.topic, fields.consumer_group)
        if registered is None:
            problem = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise ResponseError(ResponseCode.FILTER_DATA_NOT_EXIST, problem)
        if registered.data.client_version < fields.sub_version:
            raise ResponseError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return registered.filter

    def _get_subscription(self, fields: PullMessage, group: SubscriptionGroupConfig) -> SubscriptionData:
        """Return the subscription of the group's heartbeats. Raises ResponseError without one."""
        members = self._state.consumers.groups.get(fields.consumer_group)
        if members is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{HELP}")
        if not group.consume_broadcast_enable and members.is_broadcasting:
            problem = f"the consumer group[{fields.consumer_group}] can not consume by broadcast way"
            raise ResponseError(ResponseCode.NO_PERMISSION, problem)
        subscription_data = members.subscriptions.get(fields.topic)
        if subscription_data is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{HELP}")
        if subscription_data.sub_version < fields.sub_version:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription_data


def check_expression_size(size: int, config: BrokerConfig) -> None:
    """Refuse expressions of too many characters. Raises ResponseError."""
    if size > config.max_expression_chars:
        remark = (
            f"an expression of {size} characters, which is more than maxExpressionChars={config.max_expression_chars}"
        )
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


def _compile_filter(subscription_data: SubscriptionData) -> Filter:
    """Compile a pull's expression; an invalid expression matches all messages. Source: ``ConsumerFilterManager``."""
    try:
        return compile_subscription(subscription_data)
    except SqlError:
        return EVERYTHING
