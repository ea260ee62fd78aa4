"""A message's fields are checked when it is made, and what cannot be encoded fails alone."""

import asyncio
from typing import Any

import pytest

from rmq_core.client import Admin, Message, MessageQueue, PushOptions, StartPosition
from rmq_core.client.errors import MessageError
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.server import RemotingServer
from rmq_formats.errors import OptionError


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"body": "three"}, "Message.body: is str, not bytes; encode it"),
        ({"body": 3}, "Message.body: is int"),
        ({"body": None}, "Message.body"),
        ({"body": [1]}, "Message.body"),
        ({"topic": b"T"}, "Message.topic: is bytes"),
        ({"topic": None}, "Message.topic"),
        ({"tags": ["t"]}, "Message.tags: is list"),
        ({"tags": 1}, "Message.tags"),
        ({"keys": 4711}, "Message.keys: is int"),
        ({"keys": [4711]}, "Message.keys: has int 4711"),
        ({"keys": b"k"}, "Message.keys: is bytes"),
        ({"keys": {"k"}}, "Message.keys: is set"),
        ({"properties": {"a": 1}}, "Message.properties: 'a' is int"),
        ({"properties": {1: "a"}}, "properties: 1 is"),
        ({"properties": ["a"]}, "Message.properties: is list"),
        ({"properties": None}, "Message.properties"),
        ({"flag": "1"}, "Message.flag: is str"),
        ({"flag": None}, "Message.flag"),
        ({"flag": True}, "Message.flag"),
        ({"delay_level": "3"}, "Message.delay_level: is str"),
        ({"delay_level": 1.5}, "Message.delay_level: is float"),
        ({"deliver_at_ms": "1"}, "Message.deliver_at_ms"),
        ({"deliver_at_ms": 1.0}, "Message.deliver_at_ms"),
        ({"wait_store": "yes"}, "Message.wait_store"),
        ({"wait_store": None}, "Message.wait_store"),
        ({"light_queues": "%LMQ%a"}, "light_queues: is one text"),
        ({"light_queues": [1]}, "light_queues: has int"),
    ],
)
def test_a_field_of_another_type_is_refused_when_the_message_is_made(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError) as caught:
        Message(**({"topic": "Orders", "body": b"x"} | fields))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fields", [{"flag": 1 << 31}, {"flag": -(1 << 31) - 1}, {"delay_level": -1}])
def test_a_number_that_brokers_cannot_take_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=next(iter(fields))):
        Message("Orders", b"x", **fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tags": "a\x02DELAY\x0118"}, "tags"),
        ({"keys": "a\x02b"}, "keys"),
        ({"keys": ["a", "b\x02DELAY\x0118"]}, "keys"),
        ({"keys": ["order 1"]}, "key 'order 1'"),
        ({"keys": ["a", ""]}, "key ''"),
    ],
)
def test_a_text_that_would_become_another_key_or_property_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(MessageError, match=says):
        Message("Orders", b"x", **fields).all_properties()


SECONDS, MICROSECONDS = 1_900_000_000, 1_900_000_000_000_000


@pytest.mark.parametrize("time", [SECONDS, MICROSECONDS])
async def test_times_that_are_no_milliseconds_are_refused(time: int) -> None:
    """A message would be delivered at once, and a group would begin at its first message."""
    with pytest.raises(MessageError, match="deliver_at_ms: expected milliseconds since 1970"):
        Message("T", b"x", deliver_at_ms=time)
    with pytest.raises(OptionError, match="start_timestamp_ms"):
        PushOptions(start=StartPosition.TIMESTAMP, start_timestamp_ms=time)
    admin = Admin("127.0.0.1:1")
    for refused in (
        admin.reset_offsets("g", "T", time),
        admin.brokers.reset_offsets("127.0.0.1:1", "g", "T", timestamp_ms=time),
        admin.offsets.search(MessageQueue(topic="T", broker_name="a", queue_id=0), time),
        admin.query_by_key("T", "k", begin_ms=time),
        admin.query_by_key("T", "k", end_ms=time),
    ):
        with pytest.raises(OptionError, match="_ms: expected milliseconds since 1970"):
            await refused


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_all_kinds_of_bytes_are_bodies(body: Any) -> None:
    message = Message("T", body, "t", ("a", "b"), {"c": "d"}, -1, 18, False, 1 << 40, ["%LMQ%e"])
    assert bytes(message.body) == b"x"
    assert message.all_properties()["KEYS"] == "a b"


async def test_a_frame_that_cannot_be_encoded_fails_alone() -> None:
    def answer(command: RemotingCommand, _: object) -> RemotingCommand:
        return command.response(body=command.body)

    def spoilt(command: RemotingCommand, _: object) -> RemotingCommand:
        return command.response(body="text")  # type: ignore[arg-type] # what a wrong handler does

    handlers = {RequestCode.GET_BROKER_CONFIG: answer, RequestCode.GET_BROKER_RUNTIME_INFO: spoilt}
    async with RemotingServer(handlers) as server, RemotingClient() as client:
        address = "{}:{}".format(*await server.listen("127.0.0.1", 0))
        bad: Any = "text"
        commands = [
            request(RequestCode.GET_BROKER_CONFIG, {}, b"one"), request(RequestCode.GET_BROKER_CONFIG, {}, bad),
            request(RequestCode.GET_BROKER_CONFIG, {"a": "\ud800"}), request(RequestCode.GET_BROKER_RUNTIME_INFO),
            request(RequestCode.GET_BROKER_CONFIG, {}, b"two"),
        ]  # fmt: skip
        sends = [client.invoke(address, command, 30) for command in commands]
        first, text, surrogate, answered, last = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(first, RemotingCommand)
        assert isinstance(last, RemotingCommand)
        assert (bytes(first.body), bytes(last.body)) == (b"one", b"two")
        assert isinstance(text, TypeError)
        assert "not bytes" in str(text)
        assert isinstance(surrogate, UnicodeError)
        assert isinstance(answered, RemotingCommand)
        assert answered.code == 1
        assert "not bytes" in str(answered.remark)
