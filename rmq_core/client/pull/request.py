"""A single pull: its request, and the meaning of its answer.

Source: ``PullAPIWrapper``, ``MQClientAPIImpl#processPullResponse``.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import ConsumerOptions
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.client.pull.subscription import filter_messages
from rmq_core.remoting.bodies import MessageQueue, SubscriptionData
from rmq_core.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.requests import PullMessage, PullResult

_COMMITS: Final = 1
_MAY_WAIT: Final = 2
_HAS_SUBSCRIPTION: Final = 4


class PullStatus(Enum):
    """The outcome of a pull, by the code of its answer."""

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW_MESSAGE = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCHED_MESSAGE = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)


_STATUSES: Final = {status.value: status for status in PullStatus}
_OTHER_STATUSES: Final = tuple(code for code in _STATUSES if code != ResponseCode.SUCCESS)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull: status, messages and the next offset.

    Attributes:
        next_offset: the offset for the next pull; the corrected one if the offset was illegal.
        messages: those that match the subscription.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage]


class Puller:
    """Sends pull requests for a consumer group."""

    def __init__(self, cluster: Cluster, group: str, options: ConsumerOptions, *, sends_subscription: bool) -> None:
        """Create the puller of a group; without ``sends_subscription`` brokers know the subscription by heartbeats."""
        self._cluster = cluster
        self._group = group
        self._options = options
        self._sends_subscription = sends_subscription
        self._broker_ids: dict[MessageQueue, int] = {}  # the broker id that the broker suggests to pull each queue from

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        data: SubscriptionData,
        *,
        commit_offset: int = 0,
        waits: bool = True,
        max_messages: int | None = None,
    ) -> Pulled:
        """Pull once.

        Args:
            commit_offset: the group's consumer offset, committed with the pull if it is above 0.
            waits: long polling: the broker may hold the request until there is a message.
            max_messages: at most so many; the options' if it is not given.

        Raises:
            BrokerError: another answer than those of ``PullStatus``.
            NoRouteError: the topic or the broker is not known.
            TransportError: no answer.
            FormatError: the answer's body is not whole records.
        """
        options = self._options
        await self._cluster.route(queue.topic)  # the caller may have made the queue himself
        broker_id = self._broker_ids.get(queue, MASTER_ID)
        address = self._cluster.address(queue.broker_name, broker_id, any_id=True)
        commits = commit_offset > 0 and broker_id == MASTER_ID
        flags = (_COMMITS if commits else 0) | (_MAY_WAIT if waits else 0)
        by_request = self._sends_subscription
        fields = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages or options.pull_batch_size,
            sys_flag=flags | (_HAS_SUBSCRIPTION if by_request else 0),
            commit_offset=commit_offset if commits else 0,
            suspend_timeout_millis=int(options.suspend_timeout_s * 1000),
            sub_version=data.sub_version,
            subscription=data.sub_string if by_request else None,
            expression_type=str(data.expression_type),
            max_msg_bytes=options.pull_batch_bytes,
        )
        answer = await self._cluster.request(
            address, RequestCode.PULL_MESSAGE, fields, timeout_s=options.pull_timeout_s, also=_OTHER_STATUSES
        )
        result = read_fields(answer, PullResult)
        self._broker_ids[queue] = result.suggest_which_broker_id
        status = _STATUSES[answer.code]
        messages = decode_records(answer.body, queue) if status is PullStatus.FOUND else []
        if messages and messages[0].queue_offset < offset:  # of an inner batch, which is given whole
            messages = [message for message in messages if message.queue_offset >= offset]
        messages = filter_messages(messages, data)
        return Pulled(status, result.next_begin_offset, result.min_offset, result.max_offset, messages)
