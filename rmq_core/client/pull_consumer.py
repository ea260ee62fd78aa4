"""The pull consumer: it reads the queues that it is told to, from where it is told to.

::

    async with PullConsumer("127.0.0.1:9876", "audit") as consumer:
        consumer.assign(await consumer.queues("Orders"))
        await consumer.seek_to_begin()
        for message in await consumer.poll(timeout_s=5):
            print(message.body)

Each assigned queue has one pull on its way while there is room for what it brings, so that ``poll`` mostly
finds messages that are there already.

Source: ``DefaultLitePullConsumerImpl``, in its mode of assigned queues.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import PullOptions
from rmq_core.client.packet import MAX_GROUP_CHARACTERS, check_name
from rmq_core.client.pull import Puller, PullStatus
from rmq_core.client.queue_offsets import QueueOffsets
from rmq_core.client.subscription import ALL, subscription
from rmq_core.remoting.acl import Credentials
from rmq_core.remoting.bodies import ConsumerData, HeartbeatData, MessageQueue, SubscriptionData
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.requests import UnregisterClient
from rmq_formats.errors import FormatError, OptionError

log = logging.getLogger("rmq.client")
_DEFAULTS: Final = PullOptions()
_AFTER_ERROR_S: Final = 1.0  # DefaultLitePullConsumer#pullTimeDelayMillsWhenException


class _Assigned:
    """A queue, and what was pulled of it."""

    def __init__(self, queue: MessageQueue, wanted: SubscriptionData) -> None:
        self.queue = queue
        self.wanted = wanted
        self.position: int | None = None  # of what poll gives next; None until the broker is asked
        self.next_offset = 0  # of the next pull
        self.cached: deque[ReceivedMessage] = deque()
        self.cached_bytes = 0
        self.room = asyncio.Event()
        self.is_paused = False
        self.task: asyncio.Task[None] | None = None

    def drop_cache(self) -> None:
        self.cached.clear()
        self.cached_bytes = 0


class PullConsumer:
    """Reads queues; use it with ``async with``, or start and close it.

    Attributes:
        group: its group's name; offsets are kept under it.
        options: its settings.
        offsets: what the brokers know of queues' offsets.
    """

    def __init__(
        self, namesrv: str, group: str, options: PullOptions = _DEFAULTS, *, credentials: Credentials | None = None
    ) -> None:
        """Prepare.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: its group's name.
            options: its settings.
            credentials: to sign requests with.

        Raises:
            OptionError: no address of a name server.
            MessageError: a bad group.
        """
        check_name("group", group, MAX_GROUP_CHARACTERS)
        self.group = group
        self.options = options
        self._cluster = Cluster(namesrv, options, credentials=credentials, heartbeat=self._heartbeat)
        self._puller = Puller(self._cluster, group, options, sends_subscription=True)
        self.offsets = QueueOffsets(self._cluster)
        self._assigned: dict[MessageQueue, _Assigned] = {}
        self._ready = asyncio.Event()
        self._error: Exception | None = None

    async def __aenter__(self) -> "PullConsumer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin; brokers are connected to when they are needed."""
        await self._cluster.start()
        if self.options.auto_commit:
            self._cluster.run(self._commit_again_and_again())

    async def close(self) -> None:
        """Commit if that is automatic, tell the brokers, and end."""
        if self.options.auto_commit:
            await self._commit_quietly()
        self.assign([])
        await self._cluster.to_masters(
            RequestCode.UNREGISTER_CLIENT,
            UnregisterClient(client_id=self._cluster.client_id, consumer_group=self.group),
        )
        await self._cluster.close()

    def _heartbeat(self) -> HeartbeatData | None:
        wanted = {one.wanted.topic: one.wanted for one in self._assigned.values()}
        if not wanted:
            return None
        data = ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            consume_from_where=self.options.start.value,
            subscription_data_set=list(wanted.values()),
        )
        return HeartbeatData(client_id=self._cluster.client_id, consumer_data_set=[data])

    # What is read.

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic that can be read.

        Raises:
            NoRouteError: there is no such topic.
            TransportError: no name server answers.
        """
        return (await self._cluster.refresh_route(topic)).read_queues

    def assign(self, queues: Iterable[MessageQueue], tags: str = ALL, *, sql: str | None = None) -> None:
        """Read these queues and no others; those that were read before go on from where they are.

        Args:
            queues: of any topics.
            tags: ``*``, or tags with ``||`` between them.
            sql: an SQL92 expression over properties instead; the broker has to allow it.

        Raises:
            OptionError: bad tags.
        """
        wanted = {queue: subscription(queue.topic, tags, sql=sql) for queue in queues}
        for queue in self._assigned.keys() - wanted.keys():
            self._stop(self._assigned.pop(queue))
        for queue, data in wanted.items():
            one = self._assigned.get(queue)
            if one is None:
                one = self._assigned[queue] = _Assigned(queue, data)
                self._begin(one)
            elif (one.wanted.sub_string, one.wanted.expression_type) != (data.sub_string, data.expression_type):
                one.wanted = data
                self._restart(one, one.position)
        if wanted:
            self._cluster.run(self._cluster.send_heartbeats())

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read."""
        return list(self._assigned)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from an offset of a queue; what was pulled and not given yet is dropped.

        Raises:
            OptionError: the queue is not assigned, or the offset is below 0.
        """
        if offset < 0:
            raise OptionError(f"an offset of {offset}")
        self._restart(self._of(queue), offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go on from the first message of some queues, or of all assigned ones; raises as ``offsets.min``."""
        for queue in queues or self.assignment:
            self.seek(queue, await self.offsets.min(queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the messages that come from now on; raises as ``offsets.max``."""
        for queue in queues or self.assignment:
            self.seek(queue, await self.offsets.max(queue))

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go on from what was stored at a time, in ms; raises as ``offsets.search``."""
        for queue in queues or self.assignment:
            self.seek(queue, await self.offsets.search(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Give nothing of these queues until they are resumed."""
        for queue in queues:
            self._of(queue).is_paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused."""
        for queue in queues:
            self._of(queue).is_paused = False
        self._ready.set()

    def position(self, queue: MessageQueue) -> int | None:
        """The offset that ``poll`` gives next; None while the broker has not been asked where to begin."""
        return self._of(queue).position

    async def poll(self, timeout_s: float = 5.0, max_messages: int | None = None) -> list[ReceivedMessage]:
        """The next messages, of all queues in turn; those of a queue are in order.

        Args:
            timeout_s: how long to wait for the first one; then the list is empty.
            max_messages: at most so many; ``pull_batch_size`` if it is not given.

        Raises:
            BrokerError, FormatError: a broker has refused a pull, or answered what is none, since the last call.
        """
        limit = max_messages or self.options.pull_batch_size
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            found = self._take(limit)
            if found:
                return found
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._ready.clear()
            left_s = deadline - loop.time()
            if left_s <= 0:
                return []
            try:
                async with asyncio.timeout(left_s):
                    await self._ready.wait()
            except TimeoutError:
                return self._take(limit)

    async def commit(self) -> None:
        """Store what ``poll`` has given as consumed; raises as ``offsets.commit``."""
        for one in list(self._assigned.values()):
            if one.position is not None:
                await self.offsets.commit(one.queue, self.group, one.position)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset of a queue; raises as ``offsets.committed``."""
        return await self.offsets.committed(queue, self.group)

    # How it works.

    def _of(self, queue: MessageQueue) -> _Assigned:
        try:
            return self._assigned[queue]
        except KeyError:
            raise OptionError(f"{queue.topic} {queue.broker_name} {queue.queue_id} is not assigned") from None

    def _take(self, limit: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for queue, one in list(self._assigned.items()):
            cached = one.cached
            if not cached or one.is_paused:
                continue
            while cached and len(found) < limit:
                message = cached.popleft()
                one.cached_bytes -= message.size
                found.append(message)
                one.position = message.queue_offset + 1
            if not cached:
                one.position = one.next_offset
            one.room.set()
            # The next call begins with another queue.
            self._assigned[queue] = self._assigned.pop(queue)
            if len(found) == limit:
                break
        return found

    def _begin(self, one: _Assigned) -> None:
        one.task = asyncio.get_running_loop().create_task(self._pull_again_and_again(one))

    def _stop(self, one: _Assigned) -> None:
        if one.task is not None:
            one.task.cancel()

    def _restart(self, one: _Assigned, position: int | None) -> None:
        self._stop(one)
        one.drop_cache()
        one.position = position
        one.next_offset = position or 0
        self._begin(one)

    async def _pull_again_and_again(self, one: _Assigned) -> None:
        while True:
            try:
                await self._pull_once(one)
            except (RemotingError, FormatError) as error:
                log.warning("pulling %s of %s failed: %s", one.queue.queue_id, one.queue.topic, error)
                self._error = error
                self._ready.set()
                await asyncio.sleep(_AFTER_ERROR_S)

    async def _pull_once(self, one: _Assigned) -> None:
        await self._cluster.route(one.queue.topic)  # the caller may have made the queue himself
        if one.position is None:
            one.next_offset = one.position = await self._begin_offset(one.queue)
        pulled = await self._puller.pull(one.queue, one.next_offset, one.wanted)
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("offset %d of %s: goes on at %d", one.next_offset, one.queue, pulled.next_offset)
        one.next_offset = pulled.next_offset
        if pulled.messages:
            one.cached.extend(pulled.messages)
            one.cached_bytes += sum(message.size for message in pulled.messages)
            self._ready.set()
        elif not one.cached:
            one.position = pulled.next_offset
        while not self._has_room(one):
            one.room.clear()
            await one.room.wait()

    def _has_room(self, one: _Assigned) -> bool:
        options = self.options
        return len(one.cached) <= options.max_cached_messages and one.cached_bytes <= options.max_cached_bytes

    async def _begin_offset(self, queue: MessageQueue) -> int:
        committed = await self.offsets.committed(queue, self.group)
        return await self.offsets.start(queue, self.options) if committed is None else committed

    async def _commit_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self.options.persist_interval_s)
            await self._commit_quietly()

    async def _commit_quietly(self) -> None:
        try:
            await self.commit()
        except RemotingError as error:
            log.warning("offsets of %s are not committed: %s", self.group, error)
