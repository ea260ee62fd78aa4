"""A new store's broker takes messages while its kernels are loaded, and ends if they cannot be had."""

import asyncio
import threading
from pathlib import Path

import pytest

from rmq_core.broker import kernel_watch
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.server import Broker
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store import kernel_loading
from rmq_core.store.config import FlushDiskType
from rmq_formats.errors import StoreError
from tests.broker.conftest import Asker, messages, small_store

TIMEOUT_S = 60.0
CONFIG = BrokerConfig(listen_port=0)


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_messages_are_taken_before_and_come_after(
    kernel_gate: threading.Event, tmp_path: Path, flush: FlushDiskType
) -> None:
    async with Broker(CONFIG, small_store(tmp_path / "store", flush)) as broker, RemotingClient({}) as client:
        asker = Asker(broker, client, {})
        assert [(await asker.send("T", body)).code for body in (b"1", b"2")] == [0, 0]
        held = asyncio.ensure_future(asker.pull("T", sysFlag=6, suspendTimeoutMillis=int(TIMEOUT_S * 1000)))
        pulled = asyncio.ensure_future(asker.pull("T"))
        asked = asyncio.ensure_future(asker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (held, pulled, asked))
        kernel_gate.set()
        for answer in (await held, await pulled):
            assert [message.body for message in messages(answer)] == [b"1", b"2"]
        assert (await asked).ext_fields["offset"] == "2"
        assert (await asker.send("T", b"3")).code == 0
        assert [message.body for message in messages(await asker.pull("T", 2))] == [b"3"]


async def test_who_looks_for_messages_waits_for_some_time_only(
    kernel_gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_watch, "_READ_PATIENCE_S", 0.05)
    async with Broker(CONFIG, small_store(tmp_path / "store")) as broker, RemotingClient({}) as client:
        asker = Asker(broker, client, {})
        assert (await asker.send("T", b"1")).code == 0
        assert (await asker.pull("T")).code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
        assert (await asker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})).ext_fields["offset"] == "0"
        kernel_gate.set()


async def test_a_broker_that_is_stopped_meanwhile_leaves_a_complete_store(
    kernel_gate: threading.Event, tmp_path: Path
) -> None:
    config = small_store(tmp_path / "store")
    async with Broker(CONFIG, config) as broker, RemotingClient({}) as client:
        assert (await Asker(broker, client, {}).send("T", b"1")).code == 0
        threading.Timer(0.1, kernel_gate.set).start()
    assert not (tmp_path / "store" / "abort").exists()
    async with Broker(CONFIG, config) as broker:
        assert broker.store.recovery.is_clean
        assert broker.store.max_offset("T", 0) == 1


async def test_a_long_wait_is_told(
    kernel_gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_watch, "_PATIENCE_S", 0.0)
    caplog.set_level("INFO")
    async with Broker(CONFIG, small_store(tmp_path / "store")):
        await asyncio.sleep(0.05)
        kernel_gate.set()
    assert caplog.text.count("still loading the kernels") == 1


async def test_a_broker_without_kernels_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise ImportError("no numba")

    store = small_store(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(kernel_loading, "load_kernels", fail)
        with pytest.raises(StoreError, match="no numba"):
            async with Broker(CONFIG, store):
                await asyncio.sleep(TIMEOUT_S)
    async with Broker(CONFIG, store) as broker:  # it has let go of the store
        assert broker.address


async def test_a_message_of_a_broker_that_ends_so_is_in_the_log(
    kernel_gate: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        assert kernel_gate.wait(TIMEOUT_S)
        raise ImportError("no numba")

    async def serve() -> None:
        async with Broker(CONFIG, store) as broker, RemotingClient({}) as client:
            assert (await Asker(broker, client, {}).send("T", b"kept")).code == 0
            kernel_gate.set()
            await asyncio.sleep(TIMEOUT_S)

    store = small_store(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(kernel_loading, "load_kernels", fail)
        with pytest.raises(StoreError, match="no numba"):
            await serve()
    async with Broker(CONFIG, store) as broker, RemotingClient({}) as client:
        assert [message.body for message in messages(await Asker(broker, client, {}).pull("T"))] == [b"kept"]
