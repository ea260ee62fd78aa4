"""Sends frames at their limits and at random to a server, and measures what that does to its event loop.

``fuzz_frames`` runs the server's loop and a stranger, who is a thread with a socket of its own. What it sends
follows from the seed alone. A report on memory is true in a process that has done nothing else: ``in_fresh_process``.
"""

import asyncio
import json
import random
import socket
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import JSON, ROCKETMQ
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.errors import RequestTimeoutError
from rmq_core.remoting.frames import MAX_FRAME_BYTES, FrameParser, encode_frame
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.settings import ServerSettings
from rmq_formats.errors import FormatError
from tests.broker.conftest import Asker, Clock, small_store

_BEAT_S: Final = 0.005
_ANSWER_TIMEOUT_S: Final = 30.0
_LIMITS: Final = ServerSettings()
_NAMES: Final = ("T", "G", "%RETRY%G", "none", "", "a/../b", "TBW102", "x" * 127, "\x00", "é\n")
_NUMBERS: Final = (-(1 << 63), -1, 0, 1, 32, 1 << 16, (1 << 31) - 1, (1 << 63) - 1, 1 << 70)
_FIELDS: Final = """
    topic consumerGroup producerGroup group groupName queueId queueOffset maxMsgNums maxNum sysFlag commitOffset
    suspendTimeoutMillis subVersion subscription expressionType timestamp offset key beginTimestamp endTimestamp
    clientID clientId msgId readQueueNums writeQueueNums perm topicFilterType attributes topicList isForce isOrder order
    defaultTopic bornTimestamp flag properties batch namespace value brokerName brokerAddr clusterName brokerId
    haServerAddr compressed bodyCrc32 srcGroup destGroup offline statsName statsKey delayLevel originTopic originMsgId
    unitMode tranStateTableOffset commitLogOffset commitOrRollback fromTransactionCheck transactionId recallHandle
    a b c d e f g h i j k l m
    """.split()  # noqa: SIM905 # a list would take a line for each
_SOUND: Final = {
    "topic": "T", "consumerGroup": "G", "producerGroup": "G", "group": "G", "groupName": "G", "queueId": "0",
    "queueOffset": "0", "maxMsgNums": "2147483647", "maxNum": "2147483647", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG", "timestamp": "-1",
    "offset": "0", "key": "k", "beginTimestamp": "0", "endTimestamp": "9223372036854775807", "isForce": "true",
    "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "bornTimestamp": "1", "flag": "0", "brokerName": "b",
    "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0", "haServerAddr": "127.0.0.1:2", "namespace": "n",
    "value": "v", "a": "G", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0",
    "k": "false", "statsName": "TOPIC_PUT_NUMS", "statsKey": "T", "compressed": "false", "isOrder": "false",
}  # fmt: skip
_LONG_VALUES: Final[Sequence[Callable[[int], str]]] = (
    lambda size: "a||" * (size // 3),
    lambda size: ("a>1 AND " * (size // 8))[: size - 8] + "a>1",
    lambda size: "a\x01b\x02" * (size // 4),
    lambda size: "T;" * (size // 2),
    lambda size: "+a=b," * (size // 5),
    lambda size: "NOT " * (size // 4),
    lambda size: "9" * size,
)


def _repeated(before: bytes, part: bytes, after: bytes = b"") -> Callable[[int], bytes]:
    return lambda size: before + part * max(0, (size - len(before) - len(after)) // len(part)) + after


def _zlib_bomb(size: int) -> bytes:
    return zlib.compress(bytes(min(size * 64, 64 << 20)), 9)[:size]


_BODIES: Final[Sequence[Callable[[int], bytes]]] = (
    _repeated(b"", b"a\\\n"),
    _repeated(b"", b"a=b\n"),
    _repeated(b"", b"["),
    _repeated(b"", b'{"a":'),
    _repeated(b"", b'"'),
    _repeated(b"", b"{"),
    _repeated(b"{", b"0:1,", b"0:1}"),
    _repeated(b"{", b'{"a":1}:1,', b"0:1}"),
    _repeated(b'{"consumerDataSet":[', b"{},", b"{}]}"),
    _repeated(b'{"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[', b"{},", b"{}]}]}"),
    _repeated(b'{"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"tagsSet":[', b'"",', b'""]}]}]}'),
    _repeated(
        b'{"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[',
        b'{"topic":"T","subString":"a>1 AND b<2","expressionType":"SQL92"},', b"{}]}]}",
    ),
    _repeated(b'{"consumerDataSet":[{"groupName":null,0:[', b"{},", b"{}]}]}"),
    _repeated(b'{"mqSet":[', b'{"brokerName":"b","queueId":1,"topic":"T"},', b"{}]}"),
    _repeated(b'{"topicConfigList":[', b'{"topicName":"T"},', b"{}]}"),
    _repeated(b'{"groupConfigList":[', b'{"groupName":"G"},', b"{}]}"),
    _repeated(b'{"topicConfigSerializeWrapper":{"topicConfigTable":{', b'"a":{},', b'"b":{}}}}'),
    _repeated(b"", b"\x00\x00\x00\x17" + bytes(15) + b"\x01x\x00\x00"),  # a batch of the smallest messages
    _repeated(b"", b"9"),
    _repeated(b"", b"\\ud800"),
    _zlib_bomb,
)  # fmt: skip


@cache
def _body(shape: int, size: int) -> bytes:
    return _BODIES[shape](size)


@dataclass(slots=True)
class FuzzReport:
    """What frames did to a server.

    Attributes:
        frames: how many were sent.
        answers: how often each response code came.
        closed: how many ended their connection.
        longest_cpu_s: the longest time for which the loop worked without a break, in processor time.
        longest_wall_s: the same by the clock, other processes and disks included.
        worst: the frame before that.
        grown_bytes: how much private memory the process had more, at most.
        healthy: requests of the healthy client that were answered.
    """

    frames: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    closed: int = 0
    longest_cpu_s: float = 0.0
    longest_wall_s: float = 0.0
    worst: str = ""
    grown_bytes: int = 0
    healthy: int = 0


def private_bytes() -> int:
    """Private memory of this process; mapped files are not in it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def frames_at_limits(code: int) -> Iterator[RemotingCommand]:
    """Requests of a code with each shape of body and of a long field, at and above the limits."""
    fields = dict(_SOUND)
    for shape in range(len(_BODIES)):
        for size in (_LIMITS.max_body_bytes, _LIMITS.max_list_bytes):
            yield request(code, fields | {"m": str(size == _LIMITS.max_list_bytes).lower()}, _body(shape, size))
    yield request(code, dict(fields), _BODIES[code % len(_BODIES)](MAX_FRAME_BYTES - 4096))
    for name in ("subscription", "properties", "i", "topicList", "attributes", "topic", "key"):
        for value in _LONG_VALUES:
            full = fields | {name: value(_LIMITS.max_header_bytes - 4096), "m": "false"}
            yield request(code, full, serialize_type=ROCKETMQ)


def frame_at_random(code: int, dice: random.Random) -> RemotingCommand:
    """A request of a code with fields and a body by chance."""
    fields = {}
    for name in dice.sample(_FIELDS, dice.randrange(len(_FIELDS))):
        kind = dice.random()
        if kind < 0.45:
            fields[name] = dice.choice(_NAMES)
        elif kind < 0.95:
            fields[name] = str(dice.choice(_NUMBERS))
        else:
            fields[name] = dice.choice(_LONG_VALUES)(dice.randrange(4, 20_000))
    body = b""
    kind = dice.random()
    if kind < 0.3:
        body = dice.randbytes(dice.randrange(200))
    elif kind < 0.8:
        body = dice.choice(_BODIES)(dice.randrange(100, 1 << dice.randrange(8, 18)))
        at = dice.randrange(len(body) + 1)
        body = body[:at] + dice.choice([b"", b"null", b"}", b"]", b'"', b"\xff", b"\\"]) + body[at:]
    elif kind < 0.9:
        body = json.dumps({name: dice.choice(_NUMBERS[:8]) for name in dice.sample(_FIELDS, 9)}).encode()
    return request(code, fields, body, serialize_type=dice.choice([JSON, ROCKETMQ]))


class _Stranger:
    """A client with a blocking socket, which connects again whenever it is thrown out."""

    def __init__(self, address: str, report: FuzzReport) -> None:
        host, port = address.rsplit(":", 1)
        self._place = host, int(port)
        self._report = report
        self._socket: socket.socket | None = None
        self._parser = FrameParser()
        self.now = "nothing"

    def send(self, command: RemotingCommand) -> None:
        """Send a request and wait for its answer, or for the end of the connection."""
        self.now = f"code {command.code}, {len(command.body)} B beginning {bytes(command.body[:60])!r}"
        try:
            frame = encode_frame(command)
        except (FormatError, UnicodeEncodeError):
            return  # nobody can send it
        self._report.frames += 1
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._place, _ANSWER_TIMEOUT_S)
                self._parser = FrameParser()
            self._socket.sendall(frame)
            while True:
                data = self._socket.recv(1 << 16)
                if not data:
                    break
                for answer in self._parser.feed(data):
                    if answer.is_response:
                        self._report.answers[answer.code] = self._report.answers.get(answer.code, 0) + 1
                        return
        except ConnectionError:
            pass
        except TimeoutError as error:
            raise RequestTimeoutError(str(self._place), f"no answer to {self.now}") from error
        self._report.closed += 1
        self.close()

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


async def fuzz_frames(
    address: str,
    codes: Sequence[int],
    seed: int,
    random_frames: int,
    *,
    limits_of: Sequence[int] = (),
    healthy: Callable[[], Awaitable[object]],
) -> FuzzReport:
    """Send frames to a server that runs on this event loop.

    Args:
        address: ``host:port`` of the server.
        codes: request codes for frames at random.
        seed: of the chances.
        random_frames: how many.
        limits_of: request codes for frames at the limits, all shapes of each.
        healthy: a request that has to be answered well all the while; it raises otherwise.
    """
    report = FuzzReport()
    stranger = _Stranger(address, report)

    def act() -> None:
        dice = random.Random(seed)
        for code in limits_of:
            for command in frames_at_limits(code):
                stranger.send(command)
        for _ in range(random_frames):
            stranger.send(frame_at_random(dice.choice(codes), dice))
        stranger.close()

    await watched(act, report, lambda: stranger.now, healthy)
    return report


def fuzz_broker(root: Path, seed: int, *, codes_at_limits: int, random_frames: int) -> FuzzReport:
    """Send frames to a new broker on a new event loop, beside a healthy producer.

    Args:
        root: of the broker's store.
        seed: of the chances.
        codes_at_limits: of how many request codes all frames at the limits are sent; of all, if there are fewer.
        random_frames: how many, of all request codes.
    """
    return asyncio.run(_fuzz_broker(root, random.Random(seed), codes_at_limits, random_frames))


async def _fuzz_broker(root: Path, dice: random.Random, codes_at_limits: int, random_frames: int) -> FuzzReport:
    handlers: dict[int, Handler] = {}
    config = BrokerConfig(listen_port=0, channel_expired_timeout_ms=1 << 31)
    async with Broker(config, small_store(root), Clock()) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)

        async def healthy() -> None:
            answer = await asker.send("Healthy")
            assert answer.code == 0, f"a healthy producer is refused: {answer}"

        await asker.send("T", properties={"KEYS": "k"})
        await asker.heartbeat("G", SubscriptionData(topic="T"))
        codes = sorted(broker._server._handlers)
        limits_of = dice.sample(codes, min(codes_at_limits, len(codes)))
        return await fuzz_frames(
            broker.address, codes, dice.getrandbits(32), random_frames, limits_of=limits_of, healthy=healthy
        )


async def watched(
    act: Callable[[], None], report: FuzzReport, now: Callable[[], str], healthy: Callable[[], Awaitable[object]]
) -> None:
    """Have a stranger act in a thread of its own, and report what that does to this event loop.

    Args:
        act: what the stranger does.
        report: is filled in.
        now: tells what the stranger is at.
        healthy: as in ``fuzz_frames``.
    """
    before_bytes = private_bytes()

    async def watch() -> None:
        while True:
            sent, wall, cpu = now(), time.perf_counter(), time.thread_time()
            await asyncio.sleep(_BEAT_S)
            worked = time.thread_time() - cpu
            if worked > report.longest_cpu_s:
                report.longest_cpu_s, report.worst = worked, f"{sent}, then {now()}"
            report.longest_wall_s = max(report.longest_wall_s, time.perf_counter() - wall - _BEAT_S)
            report.grown_bytes = max(report.grown_bytes, private_bytes() - before_bytes)

    async def ask() -> None:
        while True:
            await healthy()
            report.healthy += 1
            await asyncio.sleep(0.01)

    helpers = [asyncio.create_task(watch()), asyncio.create_task(ask())]
    try:
        acting = asyncio.create_task(asyncio.to_thread(act))
        await asyncio.wait([acting, *helpers], return_when=asyncio.FIRST_COMPLETED)
        if not acting.done():  # the healthy client has failed; let the stranger end
            await asyncio.wait([acting])
        await acting
    finally:
        for helper in helpers:
            helper.cancel()
        results = await asyncio.gather(*helpers, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
