"""A new store is open, and takes messages, while the kernels are loaded that dispatch these."""

import threading
from pathlib import Path

import pytest

from rmq_core.store import kernel_loading
from rmq_core.store.values import PutStatus
from rmq_formats.message import decode_record
from tests.store.checking import check_derived
from tests.store.making import config_of, opened, put, read_all


def test_the_first_dispatch_waits_for_the_kernels(kernel_gate: threading.Event, tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    assert store.dispatch(), "nothing to wait for"
    assert put(store, body=b"early").status is PutStatus.PUT_OK
    assert (store.max_offset("T", 0), store.next_offset("T", 0)) == (0, 1)
    threading.Timer(0.05, kernel_gate.set).start()
    assert store.dispatch()
    assert kernel_gate.is_set()
    assert [decode_record(record).body for record in read_all(store)] == [b"early"]
    assert store.shutdown()
    check_derived(config)


def test_a_store_that_is_shut_down_at_once_is_complete(kernel_gate: threading.Event, tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put(store)
    threading.Timer(0.05, kernel_gate.set).start()
    assert store.shutdown()
    assert kernel_gate.is_set()
    check_derived(config)


def test_without_kernels_no_message_is_taken_and_none_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise ImportError("no numba")

    config = config_of(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(kernel_loading, "load_kernels", fail)
        store = opened(config)
        put(store, body=b"before it was known")
        assert not store.dispatch()
        assert "no numba" in store.refusals["kernels"]
        assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert not store.shutdown(), "its message is in no queue"
    with_kernels = opened(config)
    assert [decode_record(record).body for record in read_all(with_kernels)] == [b"before it was known"]
    assert with_kernels.shutdown()
