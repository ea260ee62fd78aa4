"""Benchmarks the remoting layer in requests a second: an echo server in a separate process, with one thread.

The load is that of a Java producer with bodies of 1 KiB (code 310, 13 fields); the handler reads fields and responds as
a broker. One client only writes prepared bytes and counts response bytes, to measure the server; the other client is
``RemotingClient``.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import cast

import psutil

from benchmarks.measure import Figure, processor_seconds
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import JSON, ROCKETMQ, RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.frames import encode_frame
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.loop import run
from rmq_core.remoting.requests import SendMessageV2
from rmq_core.remoting.server import RemotingServer

BODY = b"x" * 1024
FIELDS = {
    "a": "producer_group", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1795228809535",
    "h": "0", "i": "UNIQ_KEY\x017F00000100002A9F0000011F71FB04CB\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


def send_message(request: RemotingCommand, _connection: Connection) -> RemotingCommand:
    """Respond as a broker, without storing the message."""
    message = read_fields(request, SendMessageV2)
    fields = {
        "msgId": "7F00000100002A9F0000011F71FB04CB",
        "queueId": str(message.queue_id),
        "queueOffset": "123456",
        "transactionId": "7F00000100002A9F0000011F71FB04CB",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    return request.response(0, None, fields)


async def serve() -> None:
    server = RemotingServer({RequestCode.SEND_MESSAGE_V2: send_message})
    _, port = await server.listen("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.close()


class _Pump(asyncio.Protocol):
    """Sender of requests with a constant number in flight, which counts responses by bytes."""

    def __init__(self, frame: bytes, answer_bytes: int, depth: int, count: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frame, self._answer_bytes, self._depth, self._left = frame, answer_bytes, depth, count
        self._to_send, self._bytes = count, 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._send(self._depth)

    def _send(self, count: int) -> None:
        count = min(count, self._to_send)
        self._to_send -= count
        self._transport.write(self._frame * count)

    def data_received(self, data: bytes) -> None:
        answers, self._bytes = divmod(self._bytes + len(data), self._answer_bytes)
        self._left -= answers
        if self._to_send:
            self._send(answers)
        if not self._left:
            self.done.set_result(None)


def _request(serialize_type: int) -> RemotingCommand:
    return request(RequestCode.SEND_MESSAGE_V2, dict(FIELDS), BODY, serialize_type=serialize_type)


async def pump(port: int, serialize_type: int, connections: int, depth: int, count: int) -> float:
    """Measure the responses a second of the server."""
    command = _request(serialize_type)
    answer_bytes = len(encode_frame(send_message(command, None)))  # type: ignore[arg-type] # it is not looked at
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    pumps = []
    for _ in range(connections):
        each = count // connections
        make = partial(_Pump, encode_frame(command), answer_bytes, depth // connections, each)
        transport, protocol = await loop.create_connection(make, "127.0.0.1", port)
        pumps.append((transport, protocol))
    for transport, protocol in pumps:
        await protocol.done
        transport.close()
    return count / (time.perf_counter() - begin)


async def invoke(port: int, serialize_type: int, depth: int, count: int) -> float:
    """Measure the responses a second of ``RemotingClient``, with ``depth`` requests in flight."""
    async with RemotingClient() as client:
        remaining = count

        async def work() -> None:
            nonlocal remaining
            while remaining > 0:
                remaining -= 1
                await client.invoke(f"127.0.0.1:{port}", _request(serialize_type))

        begin = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(depth)))
        return count / (time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class _Load:
    name: str
    serialize_type: int
    connections: int
    depth: int
    target: int


LOADS = (
    _Load("remoting server, JSON headers, 64 in flight on 1 connection", JSON, 1, 64, 50_000),
    _Load("remoting server, JSON headers, 256 in flight on 16 connections", JSON, 16, 256, 50_000),
    _Load("remoting server, binary headers, 64 in flight on 1 connection", ROCKETMQ, 1, 64, 20_000),
)


def figures(count: int = 100_000) -> list[Figure]:
    """Measure requests a second of server and client, and a processor second of the server."""
    command = [sys.executable, "-m", "benchmarks.remoting", "serve"]
    rows = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        port = int(server.stdout.readline())
        process = psutil.Process(server.pid)
        for load in LOADS:
            before_s = processor_seconds(process)
            rate = run(pump(port, load.serialize_type, load.connections, load.depth, count))
            busy_s = processor_seconds(process) - before_s
            value = f"{rate:,.0f} requests/s ({count / busy_s:,.0f} a processor second)"
            rows.append(Figure(load.name, value, f"{load.target:,}", rate >= load.target))
        rate = run(invoke(port, JSON, 64, count // 2))
        name = "`RemotingClient`, JSON headers, 64 in flight"
        rows.append(Figure(name, f"{rate:,.0f} requests/s", "30,000", rate >= 30_000))
        server.stdin.close()
        server.wait()
    return rows


def main() -> None:
    """Serve, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "measure"], nargs="?", default="measure")
    parser.add_argument("--count", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.what == "serve":
        run(serve())
        return
    for figure in figures(arguments.count):
        print(f"{figure.name:65s} {figure.value:>60s}  target {figure.target}")


if __name__ == "__main__":
    main()
