"""A new store takes messages while the kernels are loaded that make them readable; one with a log waits for them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.store import kernel_loading
from rmq_core.store.store import MessageStore
from rmq_core.store.values import PutStatus
from rmq_formats.message import decode_record
from tests.store.checking import check_derived
from tests.store.making import NOW_MS, config_of, opened, put, read_all

TIMEOUT_S = 60.0


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set, it has kernels load: as if that took so long."""
    event = threading.Event()
    load = kernel_loading.load_kernels

    def load_later() -> None:
        assert event.wait(TIMEOUT_S)
        load()

    monkeypatch.setattr(kernel_loading, "load_kernels", load_later)
    yield event
    event.set()


def test_what_is_put_early_is_readable_when_the_kernels_are_there(gate: threading.Event, tmp_path: Path) -> None:
    ready = threading.Event()
    store = MessageStore.open(config_of(tmp_path / "store"), NOW_MS, on_ready=ready.set)
    for number in range(5):
        assert put(store, body=b"early %d" % number).status is PutStatus.PUT_OK
        assert store.dispatch()
    assert (store.max_offset("T", 0), store.next_offset("T", 0)) == (0, 5)
    assert not ready.is_set()
    gate.set()
    assert ready.wait(TIMEOUT_S)
    assert store.dispatch()
    assert store.max_offset("T", 0) == 5
    assert [decode_record(record).body for record in read_all(store)] == [b"early %d" % number for number in range(5)]
    assert store.shutdown()


def test_a_store_that_is_shut_down_early_is_complete(gate: threading.Event, tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = MessageStore.open(config, NOW_MS, on_ready=lambda: None)
    put(store)
    threading.Timer(0.05, gate.set).start()
    assert store.shutdown()
    assert store.dispatch(), "called once more by a loop that heard of the kernels too late"
    check_derived(config)


def test_topics_are_deleted_with_what_was_put_early(gate: threading.Event, tmp_path: Path) -> None:
    store = MessageStore.open(config_of(tmp_path / "store"), NOW_MS, on_ready=lambda: None)
    put(store)
    threading.Timer(0.05, gate.set).start()
    assert store.delete_topics(["T"]) == 1
    assert store.max_offset("T", 0) == 0
    store.shutdown()


def test_without_kernels_no_message_is_taken_and_none_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = threading.Event()

    def fail() -> None:
        assert gate.wait(TIMEOUT_S)
        raise ImportError("no numba")

    config = config_of(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(kernel_loading, "load_kernels", fail)
        store = MessageStore.open(config, NOW_MS, on_ready=lambda: None)
        put(store, body=b"taken before")
        gate.set()
        assert not store.shutdown(), "its message is in no queue"
    assert "no numba" in store.refusals["kernels"]
    with_kernels = opened(config)
    assert with_kernels.recovery.record_count == with_kernels.max_offset("T", 0) == 1
    assert with_kernels.shutdown()


def test_a_store_with_a_log_is_ready_when_it_is_open(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    before = opened(config)
    put(before)
    before.shutdown()
    store = MessageStore.open(config, NOW_MS, on_ready=lambda: pytest.fail("it had nothing to load"))
    put(store)
    assert store.dispatch()
    assert store.max_offset("T", 0) == 2
    assert store.shutdown()
