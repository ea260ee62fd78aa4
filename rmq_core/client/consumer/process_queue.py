"""The process queue: pulled messages of a queue that are not consumed yet, and the offset that can be committed.

Source: ``ProcessQueue``.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import ConsumerOptions


class ProcessQueue:
    """The pulled messages of a queue that are not consumed yet.

    Attributes:
        is_closed: no more calls of the listener start.
        is_abandoned: a call of the listener was cancelled; a thread that it has started may still be at work.
        is_dropped: the queue is unassigned, or starts at another offset: results of these messages do not count.
        cached_bytes: of all messages.
        arrived: set when there are messages in ``waiting``.
        waiting: of an orderly consumer, the messages to consume next.
    """

    def __init__(self, options: ConsumerOptions, *, in_order: bool) -> None:
        self.is_closed = False
        self.is_abandoned = False
        self.is_dropped = False
        self.cached_bytes = 0
        self.arrived = asyncio.Event()
        self.waiting: deque[ReceivedMessage] = deque()
        self._options = options
        self._in_order = in_order
        self._messages: dict[int, ReceivedMessage] = {}
        self._offsets: deque[int] = deque()  # rising; those that are consumed leave when they come to the front
        self._end = 0
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return message.queue_offset in self._messages

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add pulled messages, in the order of their queue offsets."""
        for message in messages:
            self._messages[message.queue_offset] = message
            self._offsets.append(message.queue_offset)
            self.cached_bytes += message.size
            self._end = message.queue_offset + 1
        if self._in_order:
            self.waiting.extend(messages)
            self.arrived.set()

    def remove_consumed(self, messages: Iterable[ReceivedMessage]) -> int:
        """Remove consumed messages; return the offset to commit, which is that of the first unconsumed message."""
        for message in messages:
            if self._messages.pop(message.queue_offset, None) is not None:
                self.cached_bytes -= message.size
        offsets = self._offsets
        while offsets and offsets[0] not in self._messages:
            offsets.popleft()
        self._room.set()
        return offsets[0] if offsets else self._end

    @property
    def span(self) -> int:
        """The difference between the last and the first queue offset."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last queue offset; zeros if there is no message."""
        return (self._offsets[0], self._offsets[-1]) if self._offsets else (0, 0)

    @property
    def has_room(self) -> bool:
        """Return True if flow control allows another pull. Source: ``DefaultMQPushConsumerImpl#pullMessage``."""
        options = self._options
        return (
            len(self._messages) <= options.max_cached_messages
            and self.cached_bytes <= options.max_cached_bytes
            and (self._in_order or self.span <= options.max_span)
        )

    async def wait_for_room(self) -> None:
        """Wait until flow control allows another pull."""
        while not self.has_room:
            self._room.clear()
            await self._room.wait()
