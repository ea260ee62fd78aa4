"""Benchmarks a healthy sender beside strangers at the same broker, in three processes.

Windows alone and beside strangers are measured in turn, so that other work on the machine slows both.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Final

import psutil
import uvloop

from benchmarks.measure import Figure, processor_seconds
from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.frames import frame_head
from rmq_core.remoting.header import RemotingCommand, request
from tools.processes import Standalone, standalone

WINDOW_S: Final = 2.0
PAIRS: Final = 3  # of windows, alone and beside
PER_SECOND: Final = 400  # sends
CONNECTIONS: Final = 1000
NEW_GROUPS: Final = 3000
HEARTBEAT_GROUPS: Final = 2000
MOST: Final = 2.0  # times the p99 alone
TOPIC: Final = "Healthy"
_TIMEOUT_S: Final = 60.0
_BODY: Final = b"x" * 1024
_PIECE: Final = bytes(64)  # of a slow sender, each second
_CLAIMED_BYTES: Final = (16 << 20) - 4  # the largest frame, without its length
_SENT_BYTES: Final = 16 << 10  # of each claimed frame: all together less than maxHeldBytes
_Stranger = Callable[[str, str], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class _Windows:
    """Measurements of sends in windows, alone or beside strangers."""

    latencies_ms: list[float] = field(default_factory=list)
    broker_cpu_s: float = 0.0

    @property
    def p99_ms(self) -> float:
        return quantiles(self.latencies_ms, n=100)[98]

    @property
    def cpu_us(self) -> float:
        """Processor time of the broker for a send."""
        return self.broker_cpu_s / len(self.latencies_ms) * 1e6


def figures(work: Path) -> list[Figure]:
    """Measure the p99 of a sender alone and beside each kind of stranger, on new stores under ``work``."""
    return [_figure(work / kind, kind, title) for kind, (title, _) in STRANGERS.items()]


def _figure(work: Path, kind: str, title: str) -> Figure:
    alone, beside = _Windows(), _Windows()
    with standalone(work, "") as broker, _process("send", broker.broker) as sender:
        _measure_latencies(sender, "0.5")  # a warm-up
        for pair in range(PAIRS):
            _measure(broker, sender, alone)
            with _process(kind, broker.broker, str(pair)) as stranger:
                assert stranger.stdout is not None
                stranger.stdout.readline()  # until the stranger has begun
                _measure(broker, sender, beside)
    ratio = beside.p99_ms / alone.p99_ms
    cpu = f"the broker's processor {beside.cpu_us:.0f} µs a send, alone {alone.cpu_us:.0f}"
    return Figure(
        f"p99 of a sender beside strangers: {title} ({cpu})",
        f"{beside.p99_ms:.2f} ms",
        f"at most {MOST:g} × alone",
        ratio <= MOST,
        f"alone {alone.p99_ms:.2f} ms",
        ratio,
    )


def _measure(broker: Standalone, sender: "subprocess.Popen[str]", into: _Windows) -> None:
    process = psutil.Process(broker.pid)
    before_s = processor_seconds(process)
    into.latencies_ms += _measure_latencies(sender, f"{WINDOW_S}")
    into.broker_cpu_s += processor_seconds(process) - before_s


def _measure_latencies(sender: "subprocess.Popen[str]", seconds: str) -> list[float]:
    """Start a measurement of some seconds in the sender; return the latencies in ms."""
    assert sender.stdin is not None
    assert sender.stdout is not None
    print(seconds, file=sender.stdin, flush=True)
    latencies: list[float] = json.loads(sender.stdout.readline())
    return latencies


@contextmanager
def _process(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a part of this module in a process, which ends when its stdin is closed."""
    command = [sys.executable, "-m", "benchmarks.strangers", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


# In the sender's process.


async def _send(broker: str) -> None:
    """For each line of stdin, a number of seconds, send for that time and print the latencies.

    Sends are due at a fixed rate, and latencies count from the due time: a sender that waits for each response would
    send one message while the broker hangs, and count the delay once.
    """
    async with RemotingClient() as client:
        await client.invoke(broker, _message_command(TOPIC), _TIMEOUT_S)

        async def send(due: float) -> float:
            await client.invoke(broker, _message_command(TOPIC), _TIMEOUT_S)
            return (time.perf_counter() - due) * 1000

        while line := await asyncio.to_thread(sys.stdin.readline):
            begin, sends = time.perf_counter(), []
            for number in range(int(float(line) * PER_SECOND)):
                due = begin + number / PER_SECOND
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                sends.append(asyncio.create_task(send(due)))
            print(json.dumps(await asyncio.gather(*sends)), flush=True)


def _message_command(topic: str) -> RemotingCommand:
    fields = {
        "a": "healthy", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000)),
        "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return request(RequestCode.SEND_MESSAGE_V2, fields, _BODY)


# In a stranger's process.


@asynccontextmanager
async def _silent(broker: str, _: str) -> AsyncIterator[None]:
    async with _connections(broker):
        yield


@asynccontextmanager
async def _slow(broker: str, _: str) -> AsyncIterator[None]:
    """Send a message on each connection piece by piece, one piece a second."""
    command = _message_command("Slow")
    command.body = bytes(1 << 20)
    async with _connections(broker) as writers, _pieces(writers, bytes(frame_head(command))):
        yield


@asynccontextmanager
async def _claiming(broker: str, _: str) -> AsyncIterator[None]:
    """Send the begin of a frame that claims the largest size on each connection."""
    head = bytes(frame_head(_message_command("Slow")))
    begin = _CLAIMED_BYTES.to_bytes(4, "big") + head[4:] + bytes(_SENT_BYTES)
    async with _connections(broker) as writers, _pieces(writers, begin):
        yield


@asynccontextmanager
async def _connections(broker: str) -> AsyncIterator[list[asyncio.StreamWriter]]:
    host, port = broker.split(":")
    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(CONNECTIONS)]
    yield writers
    for writer in writers:
        writer.transport.abort()


@asynccontextmanager
async def _pieces(writers: list[asyncio.StreamWriter], begin: bytes) -> AsyncIterator[None]:
    for writer in writers:
        writer.write(begin)

    async def trickle() -> None:
        while True:
            for writer in writers:
                writer.write(_PIECE)
                await asyncio.sleep(1 / len(writers))

    task = asyncio.create_task(trickle())
    yield
    task.cancel()


@asynccontextmanager
async def _new_groups(broker: str, name: str) -> AsyncIterator[None]:
    """Send pulls of unknown groups at once."""
    async with RemotingClient() as client:
        pulls = [client.invoke(broker, _pull(f"g{name}-{n}"), _TIMEOUT_S) for n in range(NEW_GROUPS)]
        answers = asyncio.gather(*pulls)
        yield
        await answers


def _pull(group: str) -> RemotingCommand:
    fields = {
        "consumerGroup": group, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, fields)


@asynccontextmanager
async def _heartbeat(broker: str, name: str) -> AsyncIterator[None]:
    """Send a heartbeat that names many unknown groups."""
    groups = [
        ConsumerData(group_name=f"h{name}-{n}", subscription_data_set=[SubscriptionData(topic=TOPIC)])
        for n in range(HEARTBEAT_GROUPS)
    ]
    beat = encode_body(HeartbeatData(client_id=f"stranger{name}", consumer_data_set=groups))
    async with RemotingClient() as client:
        answer = asyncio.create_task(client.invoke(broker, request(RequestCode.HEART_BEAT, {}, beat), _TIMEOUT_S))
        yield
        await answer


STRANGERS: Final[dict[str, tuple[str, _Stranger]]] = {
    "silent": (f"{CONNECTIONS:,} idle connections", _silent),
    "slow": (f"{CONNECTIONS:,} slow senders", _slow),
    "claiming": (f"{CONNECTIONS:,} frames that claim 16 MiB", _claiming),
    "groups": (f"{NEW_GROUPS:,} pulls with new group names", _new_groups),
    "heartbeat": (f"a heartbeat with {HEARTBEAT_GROUPS:,} new groups", _heartbeat),
}


async def _run_stranger(kind: str, broker: str, name: str) -> None:
    """Run a stranger until stdin ends."""
    _, stranger = STRANGERS[kind]
    async with stranger(broker, name):
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    uvloop.run(_send(*arguments) if kind == "send" else _run_stranger(kind, *arguments))
