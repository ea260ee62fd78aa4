"""Replication: the official Java producer at a SYNC_MASTER whose slave has each message, ours and the original's."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.broker import PEER, START_TIMEOUT_S, Running, free_port, java_broker, java_process, load
from benchmarks.measure import Figure
from rmq_core.remoting.bodies import HaStatus, decode_body
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import request
from tools.standalone import standalone

THREADS: Final = 64
_MASTER: Final = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=10000\n"
_SLAVE: Final = "brokerRole=SLAVE\nbrokerId=1\n"


def figures(work: Path) -> list[Figure]:
    """Sends that wait for a slave, both kinds in turn, on stores under ``work``."""
    subprocess.run(["bash", str(PEER), "build"], check=True, stdout=sys.stderr)
    with our_pair(work) as (namesrv, _):
        ours = load(namesrv, "send", "Replicated", THREADS)
    with java_pair(work) as (namesrv, _):
        theirs = load(namesrv, "send", "Replicated", THREADS)
    ratio = ours / theirs
    name = f"SYNC_MASTER with one slave, single sends, {THREADS} threads"
    return [Figure(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ratio, "1.0 × Java", ratio >= 1)]


@contextmanager
def our_pair(work: Path) -> Iterator[tuple[str, str]]:
    """A master of ours, with its name server, and its slave; both addresses."""
    conf = work / "our-slave.conf"
    with standalone(work / "our-master", _MASTER) as master:
        conf.write_text(f"{_SLAVE}registerNameServerPeriod=1000\n", encoding="utf-8")
        command = [
            str(Path(sys.executable).parent / "rmq"), "broker", "--store", str(work / "our-slave"),
            "--namesrv", master.namesrv, "--listen", "127.0.0.1:0", "-c", str(conf),
        ]  # fmt: skip
        slave = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for_slave(master.broker)
            yield master.namesrv, master.broker
        finally:
            slave.send_signal(signal.SIGTERM)
            slave.wait(60)


@contextmanager
def java_pair(work: Path) -> Iterator[tuple[str, str]]:
    """The original's, likewise."""
    with ExitStack() as stack:
        master: Running = stack.enter_context(
            java_broker(work / "java-master", "ASYNC_FLUSH", f"{_MASTER}haListenPort={free_port()}\n")
        )
        store = work / "java-slave"
        ports = f"haListenPort={free_port()}\n"
        stack.enter_context(java_process(store, "ASYNC_FLUSH", master.namesrv, free_port(), _SLAVE + ports))
        _wait_for_slave(master.broker)
        yield master.namesrv, master.broker


def _wait_for_slave(master: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not asyncio.run(_has_slave(master)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no slave at {master}")
        time.sleep(0.2)


async def _has_slave(master: str) -> bool:
    async with RemotingClient() as client:
        try:
            answer = await client.invoke(master, request(RequestCode.GET_BROKER_HA_STATUS))
        except RemotingError:
            return False
        return any(one.transfer_from_where >= 0 for one in decode_body(answer.body, HaStatus).ha_connection_info)
