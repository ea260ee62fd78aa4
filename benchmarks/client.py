"""Benchmarks our own producer and push consumer at our broker, and what TLS and signed requests (ACL) cost."""

import asyncio
import json
import statistics
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.measure import Figure, rate_figure
from rmq_core.client import Admin, Credentials, Message, Producer, ProducerOptions, ReceivedMessage, Tls
from tools.consuming import consume_until
from tools.processes import standalone

TOPIC: Final = "ClientLoad"
SECONDS: Final = 5.0
BODY: Final = b"x" * 1024
CONCURRENT: Final = 256
ACCESS_ROUNDS: Final = 12  # short rounds in turn: other work on the machine slows all three kinds
ACCESS_SECONDS: Final = 2.0
_USER: Final = {"username": "admin", "password": "benchmark"}
_ACL: Final = f"authenticationEnabled=true\nauthorizationEnabled=true\ninitAuthenticationUser={json.dumps(_USER)}\n"


def figures(work: Path) -> list[Figure]:
    """Measure sends one by one, sends with many in flight, and their consumption."""
    with standalone(work / "client", "") as broker:
        sent, per_second = uvloop.run(send(broker.namesrv, SECONDS))
        consumed_per_second = uvloop.run(consume(broker.namesrv, TOPIC, sent))
    return [
        rate_figure(f"our producer, single sends, {CONCURRENT} under way", per_second, 30_000),
        rate_figure("our push consumer", consumed_per_second, 60_000),
    ]


async def create_topic(namesrv: str, topic: str, queues: int) -> None:
    """Create a topic, and wait until the name server has the route."""
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=queues)
        while topic not in await admin.topics():
            await asyncio.sleep(0.1)


async def send(
    namesrv: str, seconds: float, options: ProducerOptions | None = None, credentials: Credentials | None = None
) -> tuple[int, float]:
    """Send for some seconds; return the number of messages, and the rate."""
    async with Producer(namesrv, "client-load", options or ProducerOptions(), credentials=credentials) as producer:
        await producer.send(Message(TOPIC, BODY))
        begin = time.perf_counter()
        counts = await asyncio.gather(*(_send_until(producer, begin + seconds) for _ in range(CONCURRENT)))
        took = time.perf_counter() - begin
    return sum(counts) + 1, sum(counts) / took


async def _send_until(producer: Producer, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        await producer.send(Message(TOPIC, BODY))
        count += 1
    return count


async def consume(namesrv: str, topic: str, count: int) -> float:
    """Consume so many messages with a new group; return the rate from the first to the last."""
    consumed, first, last = 0, 0.0, 0.0

    def on_messages(received: list[ReceivedMessage]) -> bool:
        nonlocal consumed, first, last
        first = first or time.perf_counter()
        consumed += len(received)
        if consumed < count:
            return False
        last = time.perf_counter()
        return True

    await consume_until(namesrv, "client-load", [topic], on_messages, batch_size=32)
    return consumed / (last - first)


def access_figures(work: Path) -> list[Figure]:
    """Measure signed sends of a super user, and sends over TLS, as shares of plain sends, at three brokers in turn.

    The producer signs and encrypts on the processors that the broker has.
    """
    directory = work / "access"
    directory.mkdir()
    cert, key = _certificate(directory)
    settings = directory / "tls.properties"
    settings.write_text(f"tls.server.certPath={cert}\ntls.server.keyPath={key}\n")
    kinds = {
        "plain": ("", ProducerOptions(), None),
        "signed": (_ACL, ProducerOptions(), Credentials(_USER["username"], _USER["password"])),
        "TLS": (
            f"tls.server.mode=permissive\ntls.config.file={settings}\n",
            ProducerOptions(tls=Tls(trust_cert_path=str(cert))),
            None,
        ),
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        brokers = {
            kind: stack.enter_context(standalone(directory / kind, conf)) for kind, (conf, _, _) in kinds.items()
        }
        for number in range(ACCESS_ROUNDS + 1):
            for kind, (_, options, credentials) in kinds.items():
                _, per_second = uvloop.run(send(brokers[kind].namesrv, ACCESS_SECONDS, options, credentials))
                if number:  # the first round is a warm-up
                    rates[kind].append(per_second)
            time.sleep(0.1)
    return [_access_figure(kind, rates, most) for kind, most in (("signed", 0.9), ("TLS", 0.75))]


def _access_figure(kind: str, rates: dict[str, list[float]], least: float) -> Figure:
    share = statistics.median(secured / plain for secured, plain in zip(rates[kind], rates["plain"], strict=True))
    rate, plain = statistics.median(rates[kind]), statistics.median(rates["plain"])
    name = f"single sends of 1 KiB, {kind}, of plain ones (median of {ACCESS_ROUNDS})"
    return Figure(name, f"{share:.0%} ({rate:,.0f}/s of {plain:,.0f}/s)", f"{least:.0%}", share >= least)


def _certificate(directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    arguments = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key} -out {cert}"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(["openssl", *arguments.split(), *names], check=True, capture_output=True)
    return cert, key
