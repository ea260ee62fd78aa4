"""A queue that a push consumer has: pulls it again and again, and hands over what comes.

Source: ``DefaultMQPushConsumerImpl#pullMessage``.
"""

import asyncio
import logging
import time
from typing import Final

from rmq_core.client.consuming import Consuming
from rmq_core.client.errors import BrokerError
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.options import MessageModel, PushOptions
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.pull import Puller, PullStatus
from rmq_core.remoting.bodies import MessageQueue, SubscriptionData
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_formats.errors import FormatError, RmqError

log = logging.getLogger("rmq.client")
_AFTER_ERROR_S: Final = 3.0
_AFTER_FLOW_CONTROL_S: Final = 0.02


class QueueWork:
    """One queue at work.

    Attributes:
        queue: which.
        messages: what was pulled of it and is not consumed yet.
        last_pull_ms: when it was last pulled, ms since 1970.
    """

    def __init__(
        self,
        queue: MessageQueue,
        wanted: SubscriptionData,
        puller: Puller,
        offsets: OffsetStore,
        consuming: Consuming,
        options: PushOptions,
        may_pull: asyncio.Event,
    ) -> None:
        """Prepare.

        Args:
            queue: which.
            wanted: what of it.
            puller: pulls.
            offsets: the consumer's.
            consuming: where messages go.
            options: the consumer's.
            may_pull: not set while the consumer is paused.
        """
        self.queue = queue
        self.messages = ProcessQueue(options, in_order=options.in_order)
        self.last_pull_ms = 0
        self._wanted = wanted
        self._puller = puller
        self._offsets = offsets
        self._consuming = consuming
        self._options = options
        self._may_pull = may_pull
        self._next_offset = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, offset: int) -> None:
        """Begin at an offset."""
        self._next_offset = offset
        self._consuming.add(self.queue, self.messages)
        self._task = asyncio.get_running_loop().create_task(self._pull_again_and_again())

    def pull_no_more(self) -> None:
        """Pull no more; what was pulled may still be consumed."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """End; what is not consumed is forgotten. Returns when nobody works on it, if that matters."""
        self.pull_no_more()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._consuming.drop(self.messages)
        self.messages.is_dropped = True

    async def begin_anew(self, offset: int) -> None:
        """Forget what is not consumed, and go on at another offset."""
        self.messages.is_dropped = True  # at once: an offset of before must not be stored any more
        await self.stop()
        self._offsets.update(self.queue, offset, only_up=False)
        await self._offsets.persist([self.queue])
        self.messages = ProcessQueue(self._options, in_order=self._options.in_order)
        self.start(offset)

    async def _pull_again_and_again(self) -> None:
        while True:
            try:
                await self._pull_once()
            except (RemotingError, FormatError) as error:
                if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
                    await asyncio.sleep(_AFTER_FLOW_CONTROL_S)
                    continue
                log.warning("pulling %s failed: %s", self.queue, error)
                await asyncio.sleep(_AFTER_ERROR_S)
            except Exception:
                log.exception("pulling %s failed", self.queue)
                await asyncio.sleep(_AFTER_ERROR_S)

    async def _pull_once(self) -> None:
        await self._may_pull.wait()
        if not self.messages.has_room:
            await self.messages.wait_for_room()
        self.last_pull_ms = time.time_ns() // 1_000_000
        commit = self._offsets.known(self.queue) if self._options.model is MessageModel.CLUSTERING else None
        pulled = await self._puller.pull(self.queue, self._next_offset, self._wanted, commit_offset=commit or 0)
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            await self._go_to(pulled.next_offset)
            return
        self._next_offset = pulled.next_offset
        if pulled.messages:
            self.messages.put(pulled.messages)
            self._consuming.put(self.queue, self.messages, pulled.messages)
        elif not self.messages:
            self._offsets.update(self.queue, pulled.next_offset)  # all of it was filtered out

    async def _go_to(self, offset: int) -> None:
        """Go on where the broker says: messages were removed, or the group's offset was reset."""
        log.warning("%s: offset %d is not there, it goes on at %d", self.queue, self._next_offset, offset)
        dropped, self.messages = self.messages, ProcessQueue(self._options, in_order=self._options.in_order)
        dropped.is_dropped = True
        await self._consuming.drop(dropped)
        self._next_offset = offset
        self._offsets.update(self.queue, offset, only_up=False)
        try:
            await self._offsets.persist([self.queue])
        except RmqError as error:
            log.warning("the offset of %s is not stored: %s", self.queue, error)
        self._consuming.add(self.queue, self.messages)
