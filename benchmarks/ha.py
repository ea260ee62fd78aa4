"""Benchmarks replication: the official Java producer at a SYNC_MASTER with one slave, ours and Apache's."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchmarks.broker import START_TIMEOUT_S, beside_java, build_peer, java_broker, java_process, load
from benchmarks.measure import Figure
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.stats import HaStatus
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import request
from tools.processes import broker, free_ports, standalone

THREADS: Final = 64
_MASTER: Final = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=10000\n"
_SLAVE: Final = "brokerRole=SLAVE\nbrokerId=1\n"


def figures(work: Path) -> list[Figure]:
    """Measure sends that wait for a slave, with both kinds of broker in turn, on stores under ``work``."""
    build_peer()
    with our_pair(work) as namesrv:
        ours = load(namesrv, "send", "Replicated", THREADS)
    with java_pair(work) as namesrv:
        java = load(namesrv, "send", "Replicated", THREADS)
    return [beside_java(f"SYNC_MASTER with one slave, single sends, {THREADS} threads", ours, java)]


@contextmanager
def our_pair(work: Path) -> Iterator[str]:
    """Run our name server, master and slave; yield the name server's address."""
    settings = f"{_SLAVE}registerNameServerPeriod=1000\n"
    with standalone(work / "our-master", _MASTER) as master, broker(work / "our-slave", settings, master.namesrv):
        asyncio.run(_wait_for_slave(master.broker))
        yield master.namesrv


@contextmanager
def java_pair(work: Path) -> Iterator[str]:
    """Run Apache's name server, master and slave likewise."""
    ha_port, slave_ha_port, slave_port = free_ports(3)
    settings = f"{_SLAVE}haListenPort={slave_ha_port}\n"
    with (
        java_broker(work / "java-master", "ASYNC_FLUSH", f"{_MASTER}haListenPort={ha_port}\n") as master,
        java_process(work / "java-slave", "ASYNC_FLUSH", master.namesrv, slave_port, settings),
    ):
        asyncio.run(_wait_for_slave(master.broker))
        yield master.namesrv


async def _wait_for_slave(master: str) -> None:
    async with asyncio.timeout(START_TIMEOUT_S), RemotingClient() as client:
        while True:
            with suppress(RemotingError):
                response = await client.invoke(master, request(RequestCode.GET_BROKER_HA_STATUS))
                connections = decode_body(response.body, HaStatus).ha_connection_info
                if any(connection.transfer_from_where >= 0 for connection in connections):
                    return
            await asyncio.sleep(0.2)
