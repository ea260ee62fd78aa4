"""A slave of a master that knows its users: it signs what it asks for, and has users of its own."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.client import RemotingClient
from tests.broker.conftest import Asker, eventually
from tests.ha.conftest import caught_up, running, slave_of, store_of

INNER = json.dumps({"accessKey": "inner", "secretKey": "s3cret of brokers"})
GUARDED = {
    "authentication_enabled": True, "authorization_enabled": True, "inner_client_authentication_credentials": INNER,
}  # fmt: skip


@asynccontextmanager
async def master_and_client(tmp_path: Path) -> AsyncIterator[tuple[str, Asker]]:
    """A name server, a master, and a client that signs as its broker does."""
    names = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kvConfig.json"))
    async with (
        NameServer(names) as server,
        running(store_of(tmp_path / "master"), namesrv_addr=server.address, **GUARDED) as master,
        RemotingClient(credentials=Credentials("inner", "s3cret of brokers")) as client,
    ):
        signed = Asker(master.broker, client, {})
        assert (await signed.send("T")).code == 0
        assert (await master.send("T")).code == 16
        yield server.address, signed


async def test_it_copies_the_tables_of_its_master(tmp_path: Path) -> None:
    async with master_and_client(tmp_path) as (namesrv, master):
        settings = slave_of(master, namesrv_addr=namesrv, **GUARDED)
        async with running(store_of(tmp_path / "slave"), **settings, slave_read_enable=True) as slave:
            await caught_up(slave.broker, master.broker)

            async def knows() -> bool:
                return "T" in slave.broker.state.topics.table

            await eventually(knows, 30)
            assert (await slave.pull("T")).code == 16
            assert (await Asker(slave.broker, master.client, {}).pull("T")).code == 0


async def test_one_whose_secret_is_another_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = json.dumps({"accessKey": "inner", "secretKey": "s3cret of nobody"})
    async with master_and_client(tmp_path) as (namesrv, master):
        settings = slave_of(master, namesrv_addr=namesrv, inner_client_authentication_credentials=wrong)
        with caplog.at_level(logging.WARNING):
            async with running(store_of(tmp_path / "slave"), **settings):

                async def is_told() -> bool:
                    return "cannot copy topics, groups, offsets and request modes of the master" in caplog.text

                await eventually(is_told, 30)
        assert "code 16: check signature failed." in caplog.text
        assert "s3cret" not in caplog.text
