"""Replication and metrics by TLS."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.metrics.http import run_with_metrics
from rmq_core.ha.settings import HaSettings
from rmq_formats.errors import OptionError
from tests.broker.conftest import small_store
from tests.ha.conftest import caught_up, running, slave_of, store_of
from tests.ha.test_replication import fill
from tests.support.certificates import Authority


def tls_file(directory: Path, authority: Authority, trusted: Authority) -> str:
    """A file for both sides: a certificate of 127.0.0.1 that one authority has signed, and another that is trusted."""
    directory.mkdir()
    signed = authority.sign("server", "127.0.0.1")
    file = directory / "tls.properties"
    file.write_text(
        f"tls.server.certPath={signed.cert}\ntls.server.keyPath={signed.key}\ntls.client.trustCertPath={trusted.cert}\n"
    )
    return str(file)


async def test_a_slave_follows_by_tls_and_nobody_does_in_the_clear(tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    good, strange = tls_file(tmp_path / "good", ours, ours), tls_file(tmp_path / "strange", ours, others)
    speaks = {"ha_tls_enable": True, "tls_config_file": good}
    async with running(store_of(tmp_path / "master"), **speaks) as master:
        await fill(master, 12)
        end = master.broker.store.max_physical_offset
        async with running(store_of(tmp_path / "slave"), **slave_of(master, **speaks)) as slave:
            await caught_up(slave.broker, master.broker)
        for name, settings in (
            ("plain", {}), ("trusts-others", {"ha_tls_enable": True, "tls_config_file": strange}),
        ):  # fmt: skip
            async with running(store_of(tmp_path / name), **slave_of(master, **settings)) as slave:
                await asyncio.sleep(1.5)
                assert slave.broker.store.max_physical_offset == 0
                assert not slave.broker.state.replication.is_following
        ours.sign("server", "127.0.0.1")  # in place of the one before
        async with running(store_of(tmp_path / "slave"), **slave_of(master, **speaks)) as slave:
            await fill(master, 3)
            await caught_up(slave.broker, master.broker)
            assert slave.broker.store.max_physical_offset > end


def test_without_certificates_it_is_refused() -> None:
    with pytest.raises(OptionError, match=r"haTlsEnable=true needs tls.config.file"):
        HaSettings(ha_tls_enable=True).ha_server_tls()


async def test_metrics_are_told_by_tls_where_the_broker_speaks_nothing_else(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    (tmp_path / "ours").mkdir()
    ours = Authority(tmp_path / "ours")
    config = BrokerConfig(
        listen_port=0, tls_server_mode="enforcing", tls_config_file=tls_file(tmp_path / "tls", ours, ours)
    )
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    async with run_with_metrics(Broker(config, small_store(tmp_path / "store")), unused_tcp_port):
        trusting = ssl.create_default_context(cafile=str(ours.cert))
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port, ssl=trusting)
        writer.write(request)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            assert b"200 OK" not in await reader.read()
        writer.close()


async def test_a_slave_has_to_show_a_certificate_where_the_master_wants_one(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    ours = Authority(tmp_path / "ours")
    nameless = tls_file(tmp_path / "nameless", ours, ours)
    signed = ours.sign("slave")
    strict, named = tmp_path / "strict.properties", tmp_path / "named.properties"
    text = Path(nameless).read_text()
    strict.write_text(f"{text}tls.server.need.client.auth=require\ntls.server.trustCertPath={ours.cert}\n")
    named.write_text(f"{text}tls.client.certPath={signed.cert}\ntls.client.keyPath={signed.key}\n")
    async with running(store_of(tmp_path / "master"), ha_tls_enable=True, tls_config_file=str(strict)) as master:
        await fill(master, 3)
        for name, follows in ((nameless, False), (str(named), True)):
            settings = {"ha_tls_enable": True, "tls_config_file": name}
            async with running(store_of(tmp_path / "slave"), **slave_of(master, **settings)) as slave:
                if follows:
                    await caught_up(slave.broker, master.broker)
                else:
                    await asyncio.sleep(1)
                    assert slave.broker.store.max_physical_offset == 0
