"""Pull loop of a queue that is assigned to a push consumer. Source: ``DefaultMQPushConsumerImpl#pullMessage``."""

import asyncio
import logging
from typing import Final

from rmq_core.client.consumer.consume_message import ConsumeMessageService, ProcessQueue
from rmq_core.client.consumer.offset_store import OffsetStore
from rmq_core.client.errors import BrokerError
from rmq_core.client.options import MessageModel, PushOptions
from rmq_core.client.pull.request import Puller, PullStatus
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_formats.errors import FormatError, RmqError

log = logging.getLogger("rmq.client")
_AFTER_ERROR_S: Final = 3.0
_AFTER_FLOW_CONTROL_S: Final = 0.02


class QueuePullLoop:
    """Pull loop of a push consumer's assigned queue, which passes messages to the consume service.

    After ``is_revoked`` the queue is no longer assigned, though a listener call may still run.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        puller: Puller,
        offsets: OffsetStore,
        consuming: ConsumeMessageService,
        options: PushOptions,
        may_pull: asyncio.Event,
    ) -> None:
        """Create the pull loop; ``start`` starts pulling. ``may_pull`` is cleared while the consumer is paused."""
        self.queue = queue
        self.subscription = subscription
        self.is_revoked = False
        self.messages = ProcessQueue(options, in_order=options.in_order)
        self.last_pull_ms = 0  # since 1970
        self._puller = puller
        self._offsets = offsets
        self._consuming = consuming
        self._options = options
        self._may_pull = may_pull
        self._next_offset = 0
        self._one_reset = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self, offset: int) -> None:
        """Start pulling at an offset."""
        self._next_offset = offset
        self._consuming.add(self.queue, self.messages)
        self._task = asyncio.get_running_loop().create_task(self._pull_loop())

    @property
    def is_abandoned(self) -> bool:
        """Return True if a call of the listener was cancelled, so that a thread of the call may still run."""
        return self.messages.is_abandoned

    def stop_pulling(self) -> None:
        """Stop pulling; pulled messages may still be consumed."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop, and drop unconsumed messages; in orderly consumption wait for the running listener call."""
        self.stop_pulling()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._consuming.stop_queue(self.messages)
        self.messages.is_dropped = True

    async def restart_at(self, offset: int) -> None:
        """Drop unconsumed messages, and continue at another offset, unless the queue is revoked."""
        async with self._one_reset:
            self.messages.is_dropped = True  # first, so that no earlier offset is committed any more
            self._offsets.update(self.queue, offset, only_up=False)
            await self.stop()
            await self._persist()
            if not self.is_revoked:
                self.messages = ProcessQueue(self._options, in_order=self._options.in_order)
                self.start(offset)

    async def _pull_loop(self) -> None:
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
        self.last_pull_ms = self._options.clock_ms()
        commit = self._offsets.get(self.queue) if self._options.model is MessageModel.CLUSTERING else None
        subscription = self.subscription
        pulled = await self._puller.pull(self.queue, self._next_offset, subscription, commit_offset=commit or 0)
        if subscription is not self.subscription:
            return  # pull again, as the new subscription may match messages that the old one dropped
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            await self._correct_offset(pulled.next_offset)
            return
        self._next_offset = pulled.next_offset
        if pulled.messages:
            self.messages.put(pulled.messages)
            self._consuming.put(self.queue, self.messages, pulled.messages)
            if self._options.pull_interval_s:
                await asyncio.sleep(self._options.pull_interval_s)
        elif not self.messages:
            self._offsets.update(self.queue, pulled.next_offset)  # all messages were filtered out

    async def _correct_offset(self, offset: int) -> None:
        """Continue at the broker's offset: messages were deleted, or the group's offset was reset."""
        log.warning("%s: offset %d is out of range: continuing at %d", self.queue, self._next_offset, offset)
        self.messages.is_dropped = True
        self._offsets.update(self.queue, offset, only_up=False)
        await self._consuming.stop_queue(self.messages)
        self._next_offset = offset
        await self._persist()
        self.messages = ProcessQueue(self._options, in_order=self._options.in_order)
        self._consuming.add(self.queue, self.messages)

    async def _persist(self) -> None:
        try:
            await self._offsets.persist([self.queue])
        except RmqError as error:
            log.warning("cannot commit the offset of %s: %s", self.queue, error)
