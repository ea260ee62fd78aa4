"""Sends gRPC calls at their limits and at random to a proxy: all methods, all fields, and mutated bytes.

What it sends follows from the seed alone. The stranger is a thread with a channel of its own.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rmq_core.proxy.wire import rpc, v2
from tests.broker.frame_fuzz import FuzzReport, watched
from tests.proxy.conftest import proxied

_SERVICE: Final = rpc.DESCRIPTOR.services_by_name["MessagingService"]
METHODS: Final = tuple(method.name for method in _SERVICE.methods)
_BROKEN: Final = "the proxy failed; see its log"
_ANSWER_TIMEOUT_S: Final = 30.0
_DEADLINE_S: Final = 6.0  # of a call: polls are as short as they may be
_TEXTS: Final = (
    "", " ", "NormalT", "FifoT", "TranT", "DelayT", "none", "g", "fifo", "%RETRY%g", "TBW102", "broker-a", "x" * 127,
    "\x00", "1 2 3 4 0 b 0 0 0", "a\x02TAGS\x01b\x02", "é\n", "*", "a||b", "a > 1 AND b IS NULL", "NOT " * 50,
    "x" * 20_000, "0 1795357457202 15000 5 0 broker-a 0 0 0", "9" * 40, "id:0:0:broker-a",
    "djEgRGVsYXlUIGJyb2tlci1hIDEgYQ==",
)  # fmt: skip
_NUMBERS: Final = (0, 1, -1, 2, 32, 1 << 16, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63), 253_402_300_800)
_INT32: Final = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM)
_MAX_DEPTH: Final = 6
_REFUSED: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,  # of a stream
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # too large
        grpc.StatusCode.DEADLINE_EXCEEDED,  # a poll
        grpc.StatusCode.CANCELLED,
    }
)


def filled(message: Message, dice: random.Random, depth: int = 0) -> Message:
    """Fill a message's fields by chance."""
    for field in message.DESCRIPTOR.fields:
        if dice.random() < 0.3 or depth >= _MAX_DEPTH:
            continue
        place = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(dice.choice((1, 2, 130))):
                place[dice.choice(_TEXTS) + str(dice.randrange(99))] = dice.choice(_TEXTS)
        elif field.is_repeated:
            for _ in range(dice.choice((1, 1, 2, 40))):
                if field.message_type is not None:
                    filled(place.add(), dice, depth + 1)
                else:
                    place.append(_value(field, dice))
        elif field.message_type is not None:
            filled(place, dice, depth + 1)
            place.SetInParent()
        else:
            setattr(message, field.name, _value(field, dice))
    return message


def _value(field: Any, dice: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = dice.choice(_TEXTS)
        return text.encode() * dice.choice((1, 1, 50)) if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return dice.choice((0.0, -1.0, float("nan"), float("inf")))
    number = dice.choice(_NUMBERS)
    return max(-(1 << 31), min(number, (1 << 31) - 1)) if kind in _INT32 else number


def sound(name: str, dice: random.Random) -> Message:
    """A request that is nearly as it should be, of names that are there."""
    made = filled(request_of(name)(), dice)
    for field, text in (("group", "g"), ("topic", "NormalT")):
        if field in made.DESCRIPTOR.fields_by_name and dice.random() < 0.8:
            getattr(made, field).CopyFrom(v2.Resource(name=text))
    if "message_queue" in made.DESCRIPTOR.fields_by_name and dice.random() < 0.8:
        made.message_queue.topic.CopyFrom(v2.Resource(name="NormalT"))  # type: ignore[attr-defined]
        made.message_queue.broker.name = "broker-a"  # type: ignore[attr-defined]
    return made


def request_of(name: str) -> Any:
    """The class of a method's requests."""
    return rpc.TelemetryCommand if name == "Telemetry" else getattr(rpc, f"{name}Request")


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Bytes that are changed, cut or repeated in some places."""
    found = bytearray(data)
    for _ in range(dice.randrange(1, 8)):
        at = dice.randrange(len(found) + 1)
        change = dice.random()
        if change < 0.5 and at < len(found):
            found[at] ^= 1 << dice.randrange(8)
        elif change < 0.7:
            del found[at : at + dice.randrange(20)]
        else:
            found[at:at] = found[max(0, at - dice.randrange(200)) : at] + dice.randbytes(dice.randrange(4))
    return bytes(found)


def at_limits(name: str) -> Iterator[bytes]:
    """Requests of a method that are as large as a frame may be, and larger."""
    fields = request_of(name).DESCRIPTOR.fields
    texts = [one.name for one in fields if one.type == FieldDescriptor.TYPE_STRING and not one.is_repeated]
    for size in ((8 << 20) - 4096, 16 << 20):
        for field in texts:
            yield request_of(name)(**{field: "x" * size}).SerializeToString()
    yield b"\x0a\x00" * ((4 << 20) - 1000)  # an empty first field, again and again
    topic, group = v2.Resource(name="NormalT"), v2.Resource(name="g")
    if name == "SendMessage":
        yield rpc.SendMessageRequest(messages=[v2.Message(topic=topic, body=bytes(7 << 20))]).SerializeToString()
        yield rpc.SendMessageRequest(messages=[v2.Message(topic=topic)] * 100_000).SerializeToString()
    if name == "SyncLiteSubscription":
        for some in (["a"] * 2_000_000, [f"c{number}" for number in range(100_000)], ["x" * (7 << 20)]):
            yield rpc.SyncLiteSubscriptionRequest(topic=topic, group=group, lite_topic_set=some).SerializeToString()
    if name == "AckMessage":
        entry = rpc.AckMessageEntry(receipt_handle="1 2 3 4 0 b 0 0 0")
        yield rpc.AckMessageRequest(topic=topic, group=group, entries=[entry] * 100_000).SerializeToString()


class _Stranger:
    """Makes calls, one after the other, and looks at what they are answered with."""

    def __init__(self, channel: grpc.Channel, report: FuzzReport, dice: random.Random) -> None:
        self._channel = channel
        self._report = report
        self._dice = dice
        self.now = "nothing"
        self.broken: list[str] = []

    def call(self, name: str, data: bytes) -> None:
        """Make a call with these bytes."""
        self.now = f"{name}, {len(data)} B beginning {data[:80]!r}"
        self._report.frames += 1
        path = f"/{_SERVICE.full_name}/{name}"
        metadata = [("x-mq-client-id", self._dice.choice(("stranger", "stranger", "other", " ", "x" * 300)))]
        deadline_s = self._dice.choice((_DEADLINE_S, 0.05))
        answer = rpc.TelemetryCommand if name == "Telemetry" else getattr(rpc, f"{name}Response")
        method = next(one for one in _SERVICE.methods if one.name == name)
        options = {"timeout": deadline_s, "metadata": metadata}
        try:
            if method.client_streaming:
                found = list(self._channel.stream_stream(path)(iter([data]), **options))
            elif method.server_streaming:
                found = list(self._channel.unary_stream(path)(data, **options))
            else:
                found = [self._channel.unary_unary(path)(data, **options)]
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined] # an RpcError of a call
            if code not in _REFUSED:
                self.broken.append(f"{code}: {self.now}")
            return
        for one in map(answer.FromString, found):
            code = one.status.code
            self._report.answers[code] = self._report.answers.get(code, 0) + 1
            if code == v2.INTERNAL_SERVER_ERROR and one.status.message == _BROKEN:
                self.broken.append(self.now)


async def fuzz_calls(
    address: str,
    seed: int,
    random_calls: int,
    *,
    limits_of: Sequence[str] = (),
    healthy: Callable[[], Awaitable[object]],
) -> tuple[FuzzReport, list[str]]:
    """Make calls to a proxy that runs on this event loop.

    Args:
        address: ``host:port`` of the proxy.
        seed: of the chances.
        random_calls: how many, of all methods.
        limits_of: methods of which all requests at the limits are sent.
        healthy: a call that has to be answered well all the while; it raises otherwise.

    Returns:
        What it did to the loop, and the calls that were answered as nothing may be.
    """
    report, dice = FuzzReport(), random.Random(seed)
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        stranger = _Stranger(channel, report, dice)

        def act() -> None:
            for name in limits_of:
                for data in at_limits(name):
                    stranger.call(name, data)
            for _ in range(random_calls):
                name = dice.choice(METHODS)
                data = sound(name, dice).SerializeToString()
                stranger.call(name, mutated(data, dice) if dice.random() < 0.4 else data)

        await watched(act, report, lambda: stranger.now, healthy)
    return report, stranger.broken


def fuzz_proxy(store: Path, seed: int, random_calls: int, limits_of: Sequence[str]) -> tuple[FuzzReport, list[str]]:
    """Make calls to a new proxy and its broker on a new event loop, beside a healthy producer.

    Returns:
        As ``fuzz_calls``; requests of the producer that only came too late are not counted as healthy.
    """
    return asyncio.run(_fuzz_proxy(store, seed, random_calls, limits_of))


async def _fuzz_proxy(
    store: Path, seed: int, random_calls: int, limits_of: Sequence[str]
) -> tuple[FuzzReport, list[str]]:
    late: list[object] = []
    async with proxied(store) as caller:

        async def healthy() -> None:
            answer = await caller.send(caller.message("MixedT"))
            if answer.status.code == v2.PROXY_TIMEOUT:  # by other work on the machine
                late.append(answer)
            else:
                assert answer.status.code == v2.OK, f"a healthy producer is refused: {answer.status}"

        assert caller.proxy is not None
        report, broken = await fuzz_calls(
            caller.proxy.address, seed, random_calls, limits_of=limits_of, healthy=healthy
        )
    report.healthy -= len(late)
    return report, broken
