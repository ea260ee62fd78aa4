"""A queue with its consuming, without brokers."""

import asyncio
from typing import Any

from rmq_core.client import Listener, PushOptions, ReceivedMessage
from rmq_core.client.consumer.consume_message import (
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
    ProcessQueue,
)
from rmq_core.client.consumer.offset_store import RemoteOffsets
from rmq_core.client.consumer.send_back import SendBack
from rmq_core.remoting.errors import ConnectError
from tests.client.conftest import QUEUE, received


class Backs(SendBack):
    """Remembers what is sent back.

    Attributes:
        sent: offsets and delay levels.
        anew: offsets that were sent anew.
        fails: nothing can be sent back.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.anew: list[int] = []
        self.fails = False

    async def send(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        if self.fails:
            raise ConnectError("127.0.0.1:1", "gone")
        self.sent.append((message.queue_offset, delay_level))

    async def send_copy(self, message: ReceivedMessage) -> None:
        if self.fails:
            raise ConnectError("127.0.0.1:1", "gone")
        self.anew.append(message.queue_offset)


class Bench:
    """A queue with its consuming, without brokers."""

    def __init__(self, listener: Listener, brokers: Any = None, **options: Any) -> None:
        self.options = PushOptions(**{"close_timeout_s": 0.5, **options})
        self.backs = Backs()
        self.offsets = RemoteOffsets("g", brokers)  # without brokers only its memory is used
        self.locked = True
        self.queue = ProcessQueue(self.options, in_order=self.options.in_order)
        self.consuming: ConsumeMessageConcurrentlyService | ConsumeMessageOrderlyService
        if self.options.in_order:
            self.consuming = ConsumeMessageOrderlyService(
                listener, self.offsets, self.options, self.backs, lambda _: self.locked
            )
        else:
            self.consuming = ConsumeMessageConcurrentlyService(listener, self.offsets, self.options, self.backs)

    async def __aenter__(self) -> "Bench":
        self.consuming.start()
        self.consuming.add(QUEUE, self.queue)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consuming.close()

    def put(self, *offsets: int) -> None:
        messages = [received(offset) for offset in offsets]
        self.queue.put(messages)
        self.consuming.put(QUEUE, self.queue, messages)

    async def until(self, offset: int) -> None:
        """Wait until this can be committed."""
        async with asyncio.timeout(60):
            while self.offsets.get(QUEUE) != offset:
                await asyncio.sleep(0.005)
