"""Benchmarks the gRPC proxy: the official Java client sends and consumes, at ours and at Apache's, in turn.

Both have the broker in the proxy's process.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.broker import Rates, beside_java_in_turn, build_peer, java_proxy, load_program
from benchmarks.measure import Figure
from rmq_core.client import Admin
from tools.processes import running

TOPIC: Final = "LoadProxy"
QUEUES: Final = 4
THREADS: Final = 16
CONSUMED: Final = 5_000
ROUNDS: Final = 3


def figures(work: Path) -> list[Figure]:
    """Measure sends and consumption by the official gRPC client, on new stores under ``work``."""
    build_peer()
    modes = ("send", "consume")
    rates = {(name, mode): Rates() for name in ("ours", "java") for mode in modes}
    sent = dict.fromkeys(("ours", "java"), 0)
    with our_proxy(work / "proxy-ours") as ours, java_proxy(work / "proxy-java") as java:
        servers = {"ours": ours, "java": java}
        for namesrv, _, _ in servers.values():
            uvloop.run(_make_topic(namesrv))
        for number in range(ROUNDS + 1):
            for mode in modes:
                for name, (_, proxy, pid) in servers.items():
                    amount = THREADS if mode == "send" else min(CONSUMED, sent[name])
                    run = partial(load_program, "load5", proxy, mode, TOPIC, amount)
                    # The first round is a warm-up: Java compiles.
                    count = rates[name, mode].measure(pid, run) if number else run()[1]
                    sent[name] += count * (mode == "send")
    titles = {"send": f"sends through the proxy, {THREADS} threads", "consume": "receives and acknowledgements there"}
    return [
        beside_java_in_turn(f"{text}, official Java client", rates["ours", mode], rates["java", mode])
        for mode, text in titles.items()
    ]


@contextmanager
def our_proxy(store: Path) -> Iterator[tuple[str, str, int]]:
    """Run ``rmq standalone --proxy`` on a new store: addresses of name server and proxy, and pid."""
    free = ("--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0", "--proxy", "127.0.0.1:0")
    log = store.with_suffix(".log")
    with running(log, "standalone", "--store", str(store), *free, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        addresses = re.fullmatch(r"name server (\S+), broker \S+, proxy (\S+)\n", process.stdout.readline())
        if addresses is None:
            raise RuntimeError(f"rmq standalone did not start: {log.read_text().strip()}")
        yield addresses[1], addresses[2], process.pid


async def _make_topic(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES, attributes="+message.type=NORMAL")
