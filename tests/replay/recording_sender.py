"""Sender of replays that sends nothing, but records what it gets."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from rmq_core.client import BrokerError
from rmq_core.client.bulk.send import RefusedMessage
from rmq_core.client.producer.packet import message_ends, message_properties
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import ResponseCode
from rmq_offline.replay import run
from rmq_offline.replay.run import count, send
from rmq_offline.replay.source import Counts, Replay


class RecordingSender:
    """Sender in place of ``BulkSender``: each put is stored at once.

    Attributes:
        illegal: bytes of messages that are refused.
        puts: topic, queue id, number of messages and data of each put, of all senders.
    """

    illegal: ClassVar[bytes] = b"illegal"
    puts: ClassVar[list[tuple[str, int, int, bytes]]] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        self.messages = 0

    @classmethod
    def use(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let replays send by this class."""
        monkeypatch.setattr(cls, "puts", [])
        monkeypatch.setattr(run, "BulkSender", cls)

    async def __aenter__(self) -> "RecordingSender":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name="broker", queue_id=queue_id) for queue_id in range(4)]

    async def check_access(self) -> None: ...

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        assert condition()

    async def flush(self) -> None: ...

    async def put(
        self,
        queue: MessageQueue,
        data: bytes,
        messages: int,
        *,
        done: Callable[[], None],
        refused: Callable[[RefusedMessage], None],
        **_: Any,
    ) -> None:
        self.puts.append((queue.topic, queue.queue_id, messages, bytes(data)))
        position = 0
        for end in message_ends(data):
            message = bytes(data[position:end])
            position = end
            if self.illegal in message:
                messages -= 1
                error = BrokerError("broker", ResponseCode.MESSAGE_ILLEGAL, "too large")
                refused(RefusedMessage(queue, message, message_properties(message), error))
        self.messages += messages
        done()


def run_replay(replay: Replay) -> Counts:
    """Count and send."""
    return asyncio.run(send(replay, count(replay)))
