"""Producers and four consumer groups of the project's own client, each member on a machine of its own."""

import asyncio
import random
import zlib
from contextlib import suppress
from itertools import count
from typing import Final

from rmq_core.client import (
    Later,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
)
from rmq_core.client.options import StartPosition
from rmq_core.client.producer.group_client import GroupClient
from rmq_formats.errors import RmqError
from tests.lab.clusters.deliveries import ORDERED, PULLED, SHARED, TIMED, Deliveries
from tests.lab.clusters.nodes import BrokerNode
from tests.lab.clusters.promises import Promise
from tests.lab.virtual.loop import VirtualLoop
from tests.lab.virtual.network import Machine
from tests.store.small_stores import NOW_MS

PRODUCER: Final = "10.0.0.5"
PUSHED: Final = {"10.0.0.6": SHARED, "10.0.0.7": SHARED, "10.0.0.8": ORDERED, "10.0.0.11": TIMED}
POLLING: Final = ("10.0.0.12", "10.0.0.13")  # they share the queues of their topic
BY_HAND: Final = "10.0.0.14"  # it has all queues assigned, and commits by itself
CONSUMERS: Final = (*PUSHED, *POLLING, BY_HAND)
HOSTS: Final = (PRODUCER, *CONSUMERS)
_QUEUES = 2
_FAILS = 0.1  # of the calls of a listener
_LONGEST_WAIT_MS = 20_000  # beyond the roll window: some are stored again on the way
_DELAYS_MS = {1: 1000, 2: 5000}  # of the levels
_ASSIGNED_AGAIN = 10  # polls


class Members:
    """The members of all groups.

    Attributes:
        deliveries: what they have sent and were given.
    """

    def __init__(self, loop: VirtualLoop, namesrv: str, seed: object, master: BrokerNode) -> None:
        """Prepare.

        Args:
            loop: of all machines.
            namesrv: the name server's address.
            seed: of what listeners do.
            master: whose clock tells when a message is due.
        """
        self.deliveries = Deliveries()
        self._loop, self._namesrv, self._master = loop, namesrv, master
        self._dice = random.Random(f"members {seed}")
        self._numbers = count()
        self._machines = {host: Machine(host) for host in HOSTS}
        self._clients: dict[str, GroupClient] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._producer = self._made_producer("producer", retries=2)
        # A message that is sent again is another one with its body.
        self._timed_producer = self._made_producer("timed", retries=0)

    def _clock_ms(self) -> int:
        return NOW_MS + int(self._loop.now_s * 1000)

    def _made_producer(self, name: str, retries: int) -> Producer:
        options = ProducerOptions(
            instance_name=name, clock_ms=self._clock_ms, default_topic_queue_nums=_QUEUES, retries=retries
        )
        return Producer(self._namesrv, "senders", options)

    async def start(self) -> None:
        """Start all of them."""
        with self._machines[PRODUCER].owns():
            await self._producer.start()
            await self._timed_producer.start()
        for host in CONSUMERS:
            await self._start(host)

    async def _start(self, host: str) -> None:
        with self._machines[host].owns(), suppress(RmqError):  # no name server answers
            if host in PUSHED:
                self._clients[host] = await self._pushed(host, PUSHED[host])
            else:
                self._clients[host] = client = await self._pulling(host)
                self._polls[host] = asyncio.create_task(self._poll(client, shares=host in POLLING))

    async def _pushed(self, host: str, topic: str) -> PushConsumer:
        options = PushOptions(
            instance_name=host,
            clock_ms=self._clock_ms,
            start=StartPosition.FIRST,
            in_order=topic == ORDERED,
            consume_batch_size=self._dice.choice([1, 4]),
        )
        group = f"of_{topic}"

        async def listen(messages: list[ReceivedMessage]) -> Later | None:
            return await self._listen(group, messages)

        consumer = PushConsumer(self._namesrv, group, listen, options)
        consumer.subscribe(topic)
        await consumer.start()
        return consumer

    async def _pulling(self, host: str) -> PullConsumer:
        shares = host in POLLING
        options = PullOptions(
            instance_name=host,
            clock_ms=self._clock_ms,
            start=StartPosition.FIRST,
            auto_commit=shares,
            pull_batch_size=self._dice.choice([1, 4, 32]),
        )
        consumer = PullConsumer(self._namesrv, f"of_{PULLED}" if shares else "by_hand", options)
        if shares:
            consumer.subscribe(PULLED)
        await consumer.start()
        return consumer

    async def _leave(self, host: str) -> None:
        if (poll := self._polls.pop(host, None)) is not None:
            poll.cancel()
            with suppress(asyncio.CancelledError):
                await poll
        if (client := self._clients.pop(host, None)) is not None:
            with self._machines[host].owns():
                await client.close()

    async def restart_one(self) -> None:
        """A consumer leaves in order, and comes again; one that could not come before tries again."""
        host = self._dice.choice(CONSUMERS)
        await self._leave(host)
        await self._start(host)

    async def be_complete(self) -> None:
        """Have those come that could not before."""
        for host in CONSUMERS:
            if host not in self._clients:
                await self._start(host)

    async def close(self) -> None:
        """All leave."""
        for host in CONSUMERS:
            await self._leave(host)
        with self._machines[PRODUCER].owns():
            await self._producer.close()
            await self._timed_producer.close()

    # --- messages -------------------------------------------------------------------------------
    def send_soon(self, promised: Promise) -> asyncio.Task[None]:
        """Send a message in the background; ``promised`` is called when it is answered as stored."""
        topic = self._dice.choice([SHARED, ORDERED, PULLED, TIMED])
        body = b"%d of %s " % (next(self._numbers), topic.encode()) + self._dice.randbytes(30)
        if topic == TIMED:
            message, producer = self._timed(body), self._timed_producer
        else:
            message, producer = Message(topic, body, properties=_key(body)), self._producer
            self.deliveries.sent(topic, body)
        with self._machines[PRODUCER].owns():
            return asyncio.create_task(self._send(producer, message, promised))

    def _timed(self, body: bytes) -> Message:
        """A message with a delay, or with a time: that of the master's clock, and of how far that has ever come."""
        master, sent_ms, jumps = self._master, self._clock_ms(), self._master.jumps
        if self._dice.random() < 0.5:
            level = self._dice.choice(list(_DELAYS_MS))

            def is_over() -> bool:
                return self._clock_ms() >= sent_ms + _DELAYS_MS[level] or master.jumps != jumps

            self.deliveries.sent(TIMED, body, is_over)
            return Message(TIMED, body, properties=_key(body), delay_level=level)
        due_ms = sent_ms + self._dice.randrange(500, _LONGEST_WAIT_MS)
        self.deliveries.sent(TIMED, body, lambda: master.latest_ms >= due_ms)
        return Message(TIMED, body, properties=_key(body), deliver_at_ms=due_ms)

    async def _send(self, producer: Producer, message: Message, promised: Promise) -> None:
        try:
            result = await producer.send(message)
        except RmqError:
            return
        if result.status.name == "SEND_OK":
            offset = int(result.offset_msg_id[16:], 16)
            self.deliveries.acknowledged(message.body, offset)
            promised(offset, message.body)

    async def _listen(self, group: str, messages: list[ReceivedMessage]) -> Later | None:
        await asyncio.sleep(self._dice.choice([0.0, 0.0, 0.01, 2.0]))
        for message in messages:
            self.deliveries.gave(group, message)
        return Later(delay_level=1) if self._dice.random() < _FAILS else None

    async def _poll(self, consumer: PullConsumer, *, shares: bool) -> None:
        for number in count():
            try:
                if not shares and number % _ASSIGNED_AGAIN == 0:
                    consumer.assign(await consumer.queues(PULLED))
                messages = await consumer.poll(timeout_s=2.0, max_messages=self._dice.choice([None, 1, 3]))
                for message in messages:
                    self.deliveries.gave(consumer.group, message)
                if not shares:
                    await consumer.commit()
            except RmqError:
                await asyncio.sleep(1)


def _key(body: bytes) -> dict[str, str]:
    """A unique key that the seed tells; the producer's own has its process in it."""
    return {"UNIQ_KEY": f"{zlib.crc32(body):032X}"}
