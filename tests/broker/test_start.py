"""A new store's broker has its kernels before it listens: who finds it finds what was stored."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import FAST_PORT_DISTANCE, BrokerConfig, load_config
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.header import request
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hosts import Host
from tests.broker.conftest import Asker, messages, small_store
from tests.support.processes.broker_processes import COMMAND, START_S

CONFIG = BrokerConfig(listen_port=0)


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_the_first_message_can_be_read_when_it_is_answered(
    kernel_gate: threading.Event, tmp_path: Path, flush: FlushDiskType
) -> None:
    threading.Timer(0.05, kernel_gate.set).start()
    async with Broker(CONFIG, small_store(tmp_path / "store", flush)) as broker, RemotingClient({}) as client:
        assert kernel_gate.is_set()
        asker = Asker(broker, client, {})
        assert [(await asker.send("T", body)).code for body in (b"1", b"2")] == [0, 0]
        assert [message.body for message in messages(await asker.pull("T"))] == [b"1", b"2"]
        end = await asker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        assert end.ext_fields["offset"] == "2"


async def test_a_broker_comes_back_to_a_free_port_while_connections_end_there(tmp_path: Path) -> None:
    async with Broker(CONFIG, small_store(tmp_path)) as broker:
        host, _, port = broker.address.rpartition(":")
        client = await asyncio.to_thread(socket.create_connection, (host, int(port)))
        async with RemotingClient({}) as other:  # behind the first one: that is accepted, too
            assert (await Asker(broker, other, {}).ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    client.close()  # behind the broker, whose end waits for a minute
    async with Broker(replace(CONFIG, listen_port=int(port)), small_store(tmp_path)) as broker:
        assert broker.address == f"{host}:{port}"


async def test_nobody_else_gets_a_free_port_before_it_is_listened_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process asks for it while the store is opened; so it does for the fast port."""
    opened = MessageStore.open
    asked = []

    def open_late(*arguments: Any, store_host: Host, **others: Any) -> MessageStore:
        for port in (store_host.port, store_host.port - FAST_PORT_DISTANCE):
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.bind(("127.0.0.1", port))
            asked.append(port)
        return opened(*arguments, store_host=store_host, **others)

    monkeypatch.setattr(MessageStore, "open", open_late)
    async with Broker(CONFIG, small_store(tmp_path / "store")) as broker, RemotingClient({}) as client:
        assert broker.address == f"127.0.0.1:{asked[0]}"
        for port in asked:
            answer = await client.invoke(f"127.0.0.1:{port}", request(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
            assert answer.code == 0


@pytest.mark.parametrize("delay_s", [0.2, 0.6, 1.0])
@pytest.mark.long
def test_a_broker_that_is_stopped_while_it_starts_leaves_a_complete_store(tmp_path: Path, delay_s: float) -> None:
    store = tmp_path / "store"
    command = [*COMMAND, "standalone", "--store", str(store), "--listen", "127.0.0.1:0", "--broker-listen",
               "127.0.0.1:0"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    threading.Timer(delay_s, process.send_signal, [signal.SIGTERM]).start()
    _, errors = process.communicate(timeout=START_S)
    assert b"Traceback" not in errors
    assert not (store / "abort").exists()


def test_a_broker_without_kernels_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('no numba')\n")
    command = [*COMMAND, "broker", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0"]
    searched = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": searched}
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, env=environment)
    assert (done.returncode, done.stderr) == (2, "rmq: the kernels of dispatch cannot be loaded: no numba\n")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({}, r"127\.0\.0\.1:(\d+)"),
        ({"broker_ip1": "10.1.2.3"}, r"127\.0\.0\.1:(\d+), advertised as 10\.1\.2\.3:\1"),
        ({"bind_address": "0.0.0.0", "broker_ip1": "10.1.2.3"}, r"0\.0\.0\.0:(\d+), advertised as 10\.1\.2\.3:\1"),
        ({"bind_address": "::1"}, r"\[::1\]:(\d+)"),
    ],
    ids=["loopback", "another", "all", "ipv6"],
)
async def test_the_address_that_is_bound_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], pattern: str
) -> None:
    caplog.set_level("INFO")
    async with Broker(replace(CONFIG, **settings), small_store(tmp_path)) as broker:
        assert re.fullmatch(pattern, broker.listen_and_advertised_address)
        assert f"listens on {broker.listen_and_advertised_address}" in caplog.text


def test_settings_of_paths_may_begin_with_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "broker.conf"
    file.write_text("storePathRootDir=~/store\nstorePathCommitLog=~/log\ntls.config.file=~/tls.properties\n")
    config, store_config, _ = load_config(None, file, environ={})
    assert (store_config.root, store_config.commitlog_path) == (f"{tmp_path}/store", f"{tmp_path}/log")
    assert config.tls_config_file == f"{tmp_path}/tls.properties"
