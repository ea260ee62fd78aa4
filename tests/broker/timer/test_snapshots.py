"""Wheels that a broker from 5.4 on has left as snapshots, with ``timerWheelSnapshotFlush=true``."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.timer import WHEEL_FILE_BYTES, TimerCheckpoint
from rmq_formats.errors import StoreSizeError
from tests.broker.conftest import Asker, Clock
from tests.broker.timer.test_delivery import SECOND_MS, pulled, taken_in
from tests.broker.timer.test_recall import recall, sent


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig(listen_port=0, recall_message_enable=True)


def snapshot(root: Path, target: Path) -> Path:
    """Copy the wheel to where a snapshot of now is kept."""
    end = TimerCheckpoint.decode((root / "config" / "timercheck").read_bytes()).last_timer_log_flush_position
    return Path(shutil.copy(root / "timerwheel", target / f"timerwheel.{end}"))


def as_found(root: Path, stale: bytes) -> None:
    """What such a broker leaves: two snapshots, units behind them, and a wheel that it has not written."""
    (root / "timerwheel").write_bytes(stale)


def after_a_kill(root: Path, _: bytes) -> None:
    """One that was killed before its first snapshot."""
    for path in root.glob("timerwheel.*"):
        path.unlink()
    (root / "timerwheel").write_bytes(bytes(WHEEL_FILE_BYTES))
    checkpoint = root / "config" / "timercheck"  # which it has written, without this broker's note
    checkpoint.write_bytes(TimerCheckpoint.decode(checkpoint.read_bytes()).encode_file())


def written_since(root: Path, _: bytes) -> None:
    """A broker that writes no snapshots has worked on the store since: 5.3.3, or one without the setting."""
    assert len(list(root.glob("timerwheel.*"))) == 2


@pytest.mark.parametrize("leave", [as_found, after_a_kill, written_since])
async def test_what_waits_comes_whatever_file_has_the_wheel(
    asker: Asker, store_config: StoreConfig, clock: Clock, tmp_path: Path, leave: Callable[[Path, bytes], None]
) -> None:
    root, kept, stale = Path(store_config.root), tmp_path / "kept", b""
    kept.mkdir()
    for part in range(3):
        handles = [await sent(asker, "T", f"U{part}{number}", 600 + number) for number in range(10)]
        await taken_in(asker, part * 11 + 10)
        assert (await recall(asker, handles[5])).code == 0
        await taken_in(asker, part * 11 + 11)
        await asker.broker.close()
        stale = stale or (root / "timerwheel").read_bytes()
        snapshot(root, kept)  # one that is started again would take it
        await asker.broker.start()
    await asker.broker.close()
    for path in sorted(kept.iterdir(), key=lambda path: int(path.suffix[1:]))[:2]:
        shutil.copy(path, root)
    leave(root, stale)
    await asker.broker.start()
    assert [path.name for path in root.glob("timerwheel*")] == ["timerwheel"]
    clock.ahead_ms += 700 * SECOND_MS
    wanted = [f"U{part}{number}".encode() for part in range(3) for number in range(10) if number != 5]
    assert sorted(one.body for one in await pulled(asker, "T", len(wanted))) == wanted


async def test_a_snapshot_of_another_size_is_refused(asker: Asker, store_config: StoreConfig) -> None:
    await asker.send("T", properties={"TIMER_DELAY_SEC": "600"})
    await taken_in(asker, 1)
    await asker.broker.close()
    cut = snapshot(Path(store_config.root), Path(store_config.root))
    before = Path(store_config.root, "config", "timercheck").read_bytes()
    cut.write_bytes(bytes(WHEEL_FILE_BYTES - 1))
    with pytest.raises(StoreSizeError, match=f"{cut.name}: has {WHEEL_FILE_BYTES - 1} bytes"):
        await asker.broker.start()
    assert Path(store_config.root, "config", "timercheck").read_bytes() == before
    cut.unlink()
    await asker.broker.start()
