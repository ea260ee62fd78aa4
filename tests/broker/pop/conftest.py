"""A consumer that pops at a broker."""

from dataclasses import dataclass
from typing import Any

import pytest

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import PopHandle, TopicKind, decode_offsets, decode_starts, retry_topic
from rmq_formats.codecs.layout import PROPERTY_POP_CK
from tests.broker.conftest import Asker, messages


@dataclass(frozen=True, slots=True)
class Popped:
    """A popped message, as a client sees it."""

    body: bytes
    topic: str
    handle: PopHandle
    reconsume_times: int
    properties: dict[str, str]

    @property
    def place(self) -> tuple[int, int]:
        return self.handle.queue_id, self.handle.offset


class Popper:
    """Pops and acknowledges, as Java's client does."""

    def __init__(self, asker: Asker, topic: str = "T", group: str = "g", broker: str = "broker-a") -> None:
        self.asker, self.topic, self.group, self.broker = asker, topic, group, broker

    async def ask(self, **more: object) -> RemotingCommand:
        fields: dict[str, object] = {
            "consumerGroup": self.group, "topic": self.topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 10_000,
            "pollTime": 0, "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false",
        }  # fmt: skip
        return await self.asker.ask(RequestCode.POP_MESSAGE, fields | more)

    async def pop(self, **more: object) -> list[Popped]:
        answer = await self.ask(**more)
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL), answer.remark
            return []
        return popped(answer, self.broker)

    async def ack(self, popped_message: Popped, **more: object) -> RemotingCommand:
        fields: dict[str, object] = {
            "consumerGroup": self.group, "topic": retry_topic(self.group, self.topic, popped_message.handle.kind),
            "queueId": popped_message.handle.queue_id, "offset": popped_message.handle.offset,
            "extraInfo": popped_message.handle.encode(),
        }  # fmt: skip
        return await self.asker.ask(RequestCode.ACK_MESSAGE, fields | more)

    async def change(self, popped_message: Popped, invisible_ms: int) -> PopHandle:
        fields: dict[str, object] = {
            "consumerGroup": self.group, "topic": retry_topic(self.group, self.topic, popped_message.handle.kind),
            "queueId": popped_message.handle.queue_id, "offset": popped_message.handle.offset,
            "extraInfo": popped_message.handle.encode(), "invisibleTime": invisible_ms,
        }  # fmt: skip
        answer = await self.asker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        answer_fields = answer.ext_fields
        start = (
            popped_message.handle.start_offset if answer_fields["reviveQid"] == "999" else popped_message.handle.offset
        )
        return popped_message.handle._replace(
            start_offset=start,
            pop_time_ms=int(answer_fields["popTime"]),
            invisible_ms=int(answer_fields["invisibleTime"]),
        )


def popped(answer: RemotingCommand, broker: str = "broker-a") -> list[Popped]:
    """The messages of an answer, with their handles as a client makes them."""
    answer_fields: dict[str, Any] = dict(answer.ext_fields)
    starts = decode_starts(answer_fields["startOffsetInfo"])
    unread_offsets = {
        (kind, queue_id): list(offsets)
        for (kind, queue_id), offsets in decode_offsets(answer_fields["msgOffsetInfo"]).items()
    }
    popped_messages = []
    for message in messages(answer):
        properties = message.properties
        if PROPERTY_POP_CK in properties:
            handle = PopHandle.decode(properties[PROPERTY_POP_CK])
        else:
            key = TopicKind.NORMAL, message.queue_id
            assert message.queue_offset in unread_offsets[key]
            handle = PopHandle(
                starts[key],
                int(answer_fields["popTime"]),
                int(answer_fields["invisibleTime"]),
                int(answer_fields["reviveQid"]),
                *key[:1],
                broker,
                message.queue_id,
                message.queue_offset,
            )
        unread_offsets[handle.kind, handle.queue_id].remove(handle.offset)
        popped_messages.append(Popped(message.body, message.topic, handle, message.reconsume_times, properties))
    assert not any(unread_offsets.values())
    return popped_messages


@pytest.fixture
def popper(asker: Asker) -> Popper:
    """Of topic T and group g."""
    return Popper(asker)
