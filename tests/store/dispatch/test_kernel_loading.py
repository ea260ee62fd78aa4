"""A store has its kernels before it is open: what it has taken, it can dispatch."""

import sys
import threading
from pathlib import Path

import pytest

from rmq_core.store.dispatch import kernel_loading
from rmq_core.store.results import PutStatus
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.record import decode_record
from rmq_formats.errors import StoreError
from tests.store.derived_from_log import check_derived
from tests.store.small_stores import config_of, opened, put, read_all


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that has not loaded the kernels yet, as far as their loading knows."""
    monkeypatch.setattr(kernel_loading, "_KERNELS", "tests.no_such_module")
    return monkeypatch


def test_a_new_store_is_open_when_its_kernels_are_loaded(kernel_gate: threading.Event, tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    threading.Timer(0.05, kernel_gate.set).start()
    store = opened(config)
    assert kernel_gate.is_set()
    assert put(store, body=b"early").status is PutStatus.PUT_OK
    assert store.dispatch()
    assert [decode_record(record).body for record in read_all(store)] == [b"early"]
    assert store.shutdown()
    check_derived(config)


def test_a_store_that_is_shut_down_at_once_is_complete(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put(store)
    assert store.shutdown()
    check_derived(config)


@pytest.mark.usefixtures("not_loaded")
def test_without_kernels_a_new_store_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the kernels of dispatch cannot be loaded: No module named 'tests\.no_such"):
        opened(config_of(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_without_kernels_no_store_is_touched_and_no_message_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put(store, body=b"kept")
    assert store.shutdown()
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, kernel_loading._KERNELS)
        patched.setitem(sys.modules, "rmq_formats.scan.dispatch", None)
        with pytest.raises(StoreError, match="the kernels of dispatch cannot be loaded: "):
            opened(config)
    with_kernels = opened(config)
    assert with_kernels.recovery.is_clean
    assert [decode_record(record).body for record in read_all(with_kernels)] == [b"kept"]
    assert with_kernels.shutdown()


def test_a_long_wait_is_told_once(
    not_loaded: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()
    say = kernel_loading._log_wait

    def tell() -> None:
        say()
        told.set()

    not_loaded.setattr(kernel_loading, "_WAIT_HINT_S", 0.0)
    not_loaded.setattr(kernel_loading, "_log_wait", tell)
    not_loaded.setattr(kernel_loading, "import_module", lambda _: told.wait(10))
    caplog.set_level("INFO")
    store: MessageStore = opened(config_of(tmp_path / "store"))
    assert caplog.text.count("still loading the kernels") == 1
    assert store.shutdown()
