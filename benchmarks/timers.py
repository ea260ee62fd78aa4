"""Benchmarks timer messages at our broker: many that are due in the same second, and a million that wait."""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.client import consume
from benchmarks.measure import Figure, rate_figure
from rmq_core.client import Message, Producer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import StoreConfig
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.layout import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.timer import PROPERTY_OUT_MS
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.store import Store
from tools.processes import Standalone, standalone

TOPIC: Final = "TimerLoad"
COUNT: Final = 30_000
CONCURRENT: Final = 256
AHEAD_MS: Final = 30_000  # longer than the time of the sends
PENDING: Final = 1_000_000
DUE: Final = 10_000
_HOUR_S: Final = 3600
_DUE_IN_S: Final = 20
_PATIENCE_S: Final = 900
_HOST: Final = bytes([127, 0, 0, 1, 0, 0, 0, 0])


def figures(work: Path) -> list[Figure]:
    """Measure deliveries a second to our push consumer; memory, start and punctuality with many that wait."""
    with standalone(work / "timers", "") as broker:
        uvloop.run(_send(broker.namesrv))
        per_second = uvloop.run(consume(broker.namesrv, TOPIC, COUNT))
    name = f"{COUNT:,} timer messages of one second, delivered and consumed"
    return [rate_figure(name, per_second, 10_000), *pending(work / "pending", PENDING, DUE)]


async def _send(namesrv: str) -> None:
    due_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    numbers = iter(range(COUNT))
    async with Producer(namesrv, "timer-load") as producer:

        async def send_some() -> None:
            for _ in numbers:
                await producer.send(Message(TOPIC, b"x" * 1024, deliver_at_ms=due_ms))

        await asyncio.gather(*(send_some() for _ in range(CONCURRENT)))
    if time.time_ns() // 1_000_000 >= due_ms:
        raise RuntimeError("the messages were due before all were sent")


def pending(store: Path, count: int, due_count: int) -> list[Figure]:
    """Measure the cost of timer messages due within a day, and of further ``due_count`` due soon after a start."""
    now_s = time.time_ns() // 1_000_000_000
    _put(store, (now_s + _HOUR_S + number % (23 * _HOUR_S) for number in range(count)))
    with standalone(store, "timerStopEnqueue=true\n") as broker:
        idle_bytes = _own_bytes(broker.pid)
    with standalone(store, "") as broker:
        info = request(RequestCode.GET_BROKER_RUNTIME_INFO)
        asyncio.run(_wait_until(broker, info, lambda response: b'"timerOffsetBehind":"0"' in bytes(response.body)))
        waiting_bytes = _own_bytes(broker.pid) - idle_bytes
    due_s = time.time_ns() // 1_000_000_000 + _DUE_IN_S
    _put(store, (due_s for _ in range(due_count)))
    begin = time.perf_counter()
    with standalone(store, "") as broker:
        start_s = time.perf_counter() - begin
        max_offset = request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
        asyncio.run(
            _wait_until(broker, max_offset, lambda response: int(response.ext_fields.get("offset", "0")) >= due_count)
        )
        again_bytes = _own_bytes(broker.pid) - idle_bytes
    late_ms = [message.store_timestamp_ms - (due_s + 1) * 1000 for message in Store(store).messages(topic=TOPIC)]
    first_ms, last_ms = min(late_ms), max(late_ms)
    memory = f"{waiting_bytes / (1 << 20):.1f} MiB, {again_bytes / (1 << 20):.1f} after a start"
    return [
        Figure(f"memory of {count:,} timer messages that wait", memory, "50 MiB",
               max(waiting_bytes, again_bytes) <= 50 << 20),
        Figure("start of a broker with them", f"{start_s:.1f} s", "5 s", start_s <= 5),
        Figure(f"{due_count:,} of one second among them, first and last after it", f"{first_ms}, {last_ms:,} ms",
               "0 to 3,000 ms", first_ms >= 0 and last_ms <= 3000 and len(late_ms) == due_count),
    ]  # fmt: skip


def _put(store: Path, due_s: Iterable[int]) -> None:
    """Put messages into the timer topic, as a broker does when they are sent."""
    opened = MessageStore.open(
        StoreConfig(root=str(store), commitlog_path=str(store / "commitlog")), time.time_ns() // 1_000_000
    )
    for number, due in enumerate(due_s):
        now_ms = time.time_ns() // 1_000_000
        properties = {
            PROPERTY_UNIQ_KEY: f"7F00000100002A139A14{number:012X}", "WAIT": "true", PROPERTY_REAL_TOPIC: TOPIC,
            PROPERTY_REAL_QUEUE_ID: "0", PROPERTY_OUT_MS: str(due * 1000),
        }  # fmt: skip
        opened.appender.put(TIMER_TOPIC, 0, b"x" * 100, encode_properties(properties), now_ms, _HOST, now_ms)
        if not number % 1024:
            opened.dispatch()
    opened.dispatch()
    if not opened.shutdown():
        raise RuntimeError(f"{store}: not all is on the disk")


def _own_bytes(pid: int) -> int:
    """Return the memory of a process without file pages, which the system may reclaim."""
    with Path(f"/proc/{pid}/smaps_rollup").open(encoding="ascii") as lines:
        numbers = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value}
    return (int(numbers["Pss_Anon"]) + int(numbers["Pss_Shmem"])) << 10


async def _wait_until(broker: Standalone, command: RemotingCommand, is_done: Callable[[RemotingCommand], bool]) -> None:
    """Send a request again and again until the response fulfils a condition."""
    async with asyncio.timeout(_PATIENCE_S), RemotingClient() as client:
        while not is_done(await client.invoke(broker.broker, command)):
            await asyncio.sleep(0.2)
