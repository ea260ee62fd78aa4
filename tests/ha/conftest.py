"""Masters and slaves on free ports of the loopback."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import uvloop

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, eventually, small_store

FILE_BYTES = 64 << 10


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What users get."""
    return {"uvloop": uvloop.new_event_loop}


def store_of(path: Path, **more: object) -> StoreConfig:
    """A store whose log files are full soon."""
    return replace(small_store(path), commitlog_file_bytes=FILE_BYTES, **more)  # type: ignore[arg-type]


@asynccontextmanager
async def running(store: StoreConfig, **settings: object) -> AsyncIterator[Asker]:
    """A broker on a store, and a client of it."""
    config = BrokerConfig(**{"listen_port": 0} | settings)  # type: ignore[arg-type]
    async with Broker(config, replace(store, slave=config.is_slave)) as broker, RemotingClient({}) as client:
        yield Asker(broker, client, {})


def slave_of(master: Asker, **settings: object) -> dict[str, object]:
    """Settings of a slave."""
    address = f"127.0.0.1:{master.broker.state.replication.port}"
    return {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": address} | settings


@asynccontextmanager
async def running_pair(
    tmp_path: Path, master_settings: Mapping[str, object] = {}, **slave_settings: object
) -> AsyncIterator[tuple[Asker, Asker]]:
    """A master on the store ``master``, and its slave on the store ``slave``."""
    async with (
        running(store_of(tmp_path / "master"), **master_settings) as master,
        running(store_of(tmp_path / "slave"), **slave_of(master, **slave_settings)) as slave,
    ):
        yield master, slave


async def caught_up(slave: Broker, master: Broker) -> None:
    """Wait until a slave has all of its master's log."""

    async def is_equal() -> bool:
        return slave.store.max_physical_offset == master.store.max_physical_offset

    await eventually(is_equal, 60)


def log_of(store: StoreConfig) -> dict[str, bytes]:
    """The files of a log, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(store.commitlog_path).iterdir())}


def written(store: StoreConfig, end: int) -> dict[str, bytes]:
    """The same without files that were only made ahead, of a log that ends at a physical offset."""
    return {name: data for name, data in log_of(store).items() if int(name) < end}


def port_for_long() -> int:
    """A port that is free, and that the system gives to nobody else while its server is away.

    A client that looks for a server at one of the ports that the system gives out may meet itself there.
    """
    source = random.Random()
    while True:
        port = source.randrange(20_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
