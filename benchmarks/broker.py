"""Benchmarks the running broker: the official Java producer and consumer against ours and Apache's, in turn."""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import uvloop

from benchmarks.client import consume
from benchmarks.measure import Figure, last_line_json, processor_seconds
from rmq_core.client import Admin, Message, Producer
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import MessageRequestMode, SubscriptionGroupConfig
from rmq_core.remoting.codes import RequestCode
from tools.processes import free_ports, standalone

PEER = Path(__file__).parents[1] / "tests/interop/peer/peer.sh"
SECONDS = 8
SINGLE_THREADS = (16, 64)
BATCH_THREADS = 16
CONSUMED = 300_000
MATCHING = 150_000  # messages of a backlog that a filter lets through
TRANSACTION_THREADS = 64
START_TIMEOUT_S = 60
_FIRST = "First"
_CONF = """brokerClusterName=DefaultCluster
brokerName=broker-a
brokerIP1=127.0.0.1
autoCreateTopicEnable=true
flushDiskType={flush}
listenPort={port}
namesrvAddr={namesrv}
diskMaxUsedSpaceRatio=99
{more}"""
POP_TOPIC: Final = "LoadPop"
POPPED: Final = 20_000
POP_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Running:
    """A running broker."""

    namesrv: str
    broker: str
    start_s: float  # until the response to the first send; of Apache's broker, until it listens
    idle_bytes: int  # resident memory after the consumption of the first message
    pid: int


def figures(work: Path) -> list[Figure]:
    """Measure sends, batch sends and consumption at both brokers in turn, on stores under ``work``."""
    build_peer()
    ours, java = {}, {}
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        with our_broker(work / f"ours-{flush}", flush) as broker:
            ours.update(_measure(broker, flush))
            ours.setdefault("start", broker.start_s)
            ours.setdefault("idle", broker.idle_bytes / (1 << 20))
        with java_broker(work / f"java-{flush}", flush) as broker:
            java.update(_measure(broker, flush))
    rates = [(f"single sends, {threads} threads", f"send {threads}", 1.3) for threads in SINGLE_THREADS]
    rates += [
        ("sends in batches of 32, messages", "batch", 1.0),
        ("consumption by Java's push consumer", "consume", 1.0),
        ("SYNC_FLUSH, single sends, 64 threads", "sync 64", 1.0),
    ]
    rows = [beside_java(name, ours[key], java[key], target) for name, key, target in rates]
    start_s, idle = ours["start"], ours["idle"]
    name = "start of `rmq standalone` to the answer to a first send"
    return [
        *rows,
        Figure(name, f"{start_s:.2f} s", "1.5 s", start_s <= 1.5),
        Figure("its resident memory when idle", f"{idle:,.0f} MiB", "120 MiB", idle <= 120),
    ]


def filter_figures(work: Path) -> list[Figure]:
    """Measure what Java's consumer receives of a backlog by a SQL92 filter, on stores under ``work``."""
    build_peer()
    rates = load_both(work / "filters", "filter", "LoadFilter", MATCHING, "enablePropertyFilter=true\n")
    return [beside_java("consumption with a SQL filter that half of the messages match", *rates)]


def transaction_figures(work: Path) -> list[Figure]:
    """Measure transactions of Java's producer, each a half message and its commit, on stores under ``work``."""
    build_peer()
    rates = load_both(work, "transaction", "LoadTransactions", TRANSACTION_THREADS)
    return [beside_java(f"transactions that are committed, {TRANSACTION_THREADS} threads", *rates)]


def build_peer() -> None:
    subprocess.run(["bash", str(PEER), "build"], check=True, stdout=sys.stderr)


def beside_java(name: str, ours: float, java: float, target: float = 1.0) -> Figure:
    """Make the figure of a rate that has to be ``target`` times Apache's."""
    ratio = ours / java
    return Figure(name, f"{ours:,.0f}/s", f"{target:.1f} × Java", ratio >= target, f"{java:,.0f}/s", ratio)


def load_both(work: Path, mode: str, topic: str, amount: int, more: str = "") -> tuple[float, float]:
    """Run the official client's load at our broker and at Apache's, with more settings, on new stores."""
    work.mkdir(parents=True, exist_ok=True)
    rates = []
    for kind, broker_of in (("ours", our_broker), ("java", java_broker)):
        with broker_of(work / f"{kind}-{topic}", "ASYNC_FLUSH", more) as broker:
            rates.append(load(broker.namesrv, mode, topic, amount))
    return rates[0], rates[1]


def _measure(broker: Running, flush: str) -> dict[str, float]:
    if flush == "SYNC_FLUSH":
        return {"sync 64": load(broker.namesrv, "send", "LoadSync", 64)}
    rates = {f"send {threads}": load(broker.namesrv, "send", "LoadSingle", threads) for threads in SINGLE_THREADS}
    rates["batch"] = load(broker.namesrv, "batch", "LoadBatch", BATCH_THREADS)
    rates["consume"] = load(broker.namesrv, "consume", "LoadBatch", CONSUMED)
    return rates


@dataclass(slots=True)
class Rates:
    """Rounds of a load at one server."""

    per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # of the server for a message; other work hardly changes that

    def measure(self, pid: int, run: Callable[[], tuple[float, int]]) -> int:
        """Run a load, which returns rate and number of messages, at the server with a pid."""
        process = psutil.Process(pid)
        before_s = processor_seconds(process)
        per_second, count = run()
        self.per_second.append(per_second)
        self.cpu_us.append((processor_seconds(process) - before_s) / max(count, 1) * 1e6)
        return count


def beside_java_in_turn(name: str, ours: Rates, java: Rates) -> Figure:
    """Make the figure of rounds in turn: the medians of the rates, and of the servers' processor time."""
    cpu = " and ".join(f"{statistics.median(rates_of_server.cpu_us):.0f}" for rates_of_server in (ours, java))
    rates = [statistics.median(rates_of_server.per_second) for rates_of_server in (ours, java)]
    return beside_java(f"{name} (median of {len(ours.per_second)}; processor µs a message {cpu})", *rates)


def load(namesrv: str, mode: str, topic: str, amount: int) -> float:
    """Run ``Load.java``; return the rate."""
    return load_program("load", namesrv, mode, topic, amount)[0]


def load_program(program: str, address: str, mode: str, topic: str, amount: int, *more: str) -> tuple[float, int]:
    """Run a load of the official client, ``Load.java`` or ``Load5.java``; return rate and number of messages."""
    seconds = 60 if mode in ("consume", "filter", "pop") else SECONDS
    command = ["bash", str(PEER), program, address, mode, topic, str(amount), str(seconds), *more]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = last_line_json(output)
    if report["failed"]:
        print(f"{mode} {topic}: {report['failed']} failed", file=sys.stderr)
    return float(report["per_second"]), int(report["messages"])


@contextmanager
def our_broker(store: Path, flush: str, more: str = "") -> Iterator[Running]:
    """Run ``rmq standalone`` on a new store, with more settings."""
    begin = time.perf_counter()
    with standalone(store, f"flushDiskType={flush}\n{more}") as broker:
        uvloop.run(_send_first(broker.namesrv))
        start_s = time.perf_counter() - begin
        uvloop.run(consume(broker.namesrv, _FIRST, 1))  # all modules are loaded then
        yield Running(broker.namesrv, broker.broker, start_s, psutil.Process(broker.pid).memory_info().rss, broker.pid)


@contextmanager
def java_broker(store: Path, flush: str, more: str = "") -> Iterator[Running]:
    """Run Apache's name server and broker on a new store, with more settings."""
    namesrv_port, port = free_ports(2)
    namesrv, broker = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{port}"
    begin = time.perf_counter()
    with (
        _java(["namesrv", str(namesrv_port)], namesrv),
        java_process(store, flush, namesrv, port, more) as process,
    ):
        uvloop.run(asyncio.wait_for(_registered(namesrv), START_TIMEOUT_S))
        yield Running(namesrv, broker, time.perf_counter() - begin, 0, process.pid)


@contextmanager
def java_process(
    store: Path, flush: str, namesrv: str, port: int, more: str = ""
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Apache's broker alone."""
    conf = _create_store(store, flush, namesrv, port, more)
    with _java(["broker", str(store), str(conf)], f"127.0.0.1:{port}") as process:
        yield process


def _create_store(store: Path, flush: str, namesrv: str, port: int, more: str) -> Path:
    """Create the directory of a store, and the ``broker.conf`` beside it."""
    store.mkdir(parents=True)
    conf = store.with_suffix(".conf")
    conf.write_text(_CONF.format(flush=flush, port=port, namesrv=namesrv, more=more), encoding="utf-8")
    return conf


@contextmanager
def java_proxy(store: Path) -> Iterator[tuple[str, str, int]]:
    """Run Apache's name server, and broker and proxy in one process: addresses of name server and proxy, and pid."""
    namesrv_port, port, grpc_port, remoting_port = free_ports(4)
    namesrv, proxy = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{grpc_port}"
    conf = _create_store(store, "ASYNC_FLUSH", namesrv, port, "")
    command = ["proxy", str(store), str(conf), namesrv, str(grpc_port), str(remoting_port)]
    with _java(["namesrv", str(namesrv_port)], namesrv), _java(command, proxy) as process:
        uvloop.run(asyncio.wait_for(_registered(namesrv), START_TIMEOUT_S))
        yield namesrv, proxy, process.pid


@contextmanager
def _java(command: list[str], address: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a Java process of RocketMQ that listens; at the end, send SIGTERM."""
    process = subprocess.Popen(
        ["bash", str(PEER), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PEER_HEAP": "4g"},
    )
    try:
        _wait_for(address)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def _registered(namesrv: str) -> None:
    """Wait until the broker has registered, some time after it listens."""
    async with Admin(namesrv) as admin:
        while "TBW102" not in await admin.topics():
            await asyncio.sleep(0.05)


async def _send_first(namesrv: str) -> None:
    async with Producer(namesrv, "first") as producer:
        await producer.send(Message(_FIRST, b"first"))


def _wait_for(address: str) -> None:
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def pop_figures(work: Path) -> list[Figure]:
    """Measure pops and acknowledgements of Java's push consumer at both brokers in turn, each time with a new group."""
    build_peer()
    rates = {"ours": Rates(), "java": Rates()}
    with our_broker(work / "pop-ours", "ASYNC_FLUSH") as ours, java_broker(work / "pop-java", "ASYNC_FLUSH") as java:
        brokers = {"ours": ours, "java": java}
        for broker in brokers.values():
            load(broker.namesrv, "batch", POP_TOPIC, 4)
        for number in range(POP_ROUNDS + 1):
            for name, broker in brokers.items():
                group = f"load-pop-{number}"
                uvloop.run(_set_pop_mode(broker, group))
                run = partial(load_program, "load", broker.namesrv, "pop", POP_TOPIC, POPPED, group)
                if number:
                    rates[name].measure(broker.pid, run)
                else:  # a warm-up: Java compiles
                    run()
    return [beside_java_in_turn("consumption by POP, Java's push consumer", rates["ours"], rates["java"])]


async def _set_pop_mode(broker: Running, group: str) -> None:
    mode = MessageRequestMode(topic=POP_TOPIC, consumer_group=group, mode="POP", pop_share_queue_num=-1)
    async with Admin(broker.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig(group_name=group))
        await admin._cluster.request(broker.broker, RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode_body(mode))
