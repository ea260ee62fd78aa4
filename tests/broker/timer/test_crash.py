"""A broker that is killed: what it leaves is what another process reads of its files at that instant."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.timer.service import Timers
from rmq_core.remoting.client import RemotingClient
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.timer import BLANK, TIMER_UNIT_BYTES, WHEEL_FILE_BYTES, TimerCheckpoint
from tests.broker.conftest import Asker, Clock, eventually, messages
from tests.broker.timer.test_delivery import DAY_MS, SECOND_MS, pulled, taken_in

COUNT = 30
_BEING_WRITTEN = shutil.ignore_patterns("*.new")  # each replaces the file of its name


@pytest.fixture
def config() -> BrokerConfig:
    """Files of seven units, and checkpoints in between."""
    return BrokerConfig(
        listen_port=0, timer_log_file_bytes=7 * TIMER_UNIT_BYTES + BLANK.size, timer_flush_interval_ms=20
    )


def picture(store: Path, target: Path) -> None:
    """Copy a store that is written meanwhile, in the order in which one file may be older than another."""
    for name in ("config", "timerwheel", "timerlog"):
        if (store / name).is_dir():
            shutil.copytree(store / name, target / name, ignore=_BEING_WRITTEN)
        elif (store / name).exists():
            shutil.copy(store / name, target / name)
    shutil.copytree(store, target, dirs_exist_ok=True, ignore=lambda *_: ["config", "timerwheel", "timerlog"])


async def bodies(asker: Asker, count: int) -> list[int]:
    return [int(one.body) for one in await pulled(asker, "T", count)]


async def again(asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, root: Path) -> list[int]:
    """What a broker has delivered in the end that begins with what another one would leave now."""
    await asyncio.to_thread(picture, Path(store_config.root), root)
    return await from_picture(store_config, config, clock, root, COUNT)


async def from_picture(
    store_config: StoreConfig, config: BrokerConfig, clock: Clock, root: Path, count: int
) -> list[int]:
    """What a broker has delivered in the end that begins with files that another one has left."""
    left = replace(store_config, root=str(root), commitlog_path=str(root / "commitlog"))
    later = Clock()
    later.ahead_ms = clock.ahead_ms + 3600 * SECOND_MS
    async with Broker(config, left, later) as broker, RemotingClient({}) as client:
        there = Asker(broker, client, {})
        await bodies(there, count)
        await there.send("Mark", properties={"TIMER_DELAY_SEC": "10"})
        later.ahead_ms += 100 * SECOND_MS
        await pulled(there, "Mark")  # what comes twice has come by then
        return await bodies(there, count)


async def send_some_for_soon(asker: Asker) -> None:
    """Messages of which every second one is due in ten seconds, the others in ten minutes."""
    for number in range(COUNT):
        delay_s = 10 if number % 2 else 600
        properties = {"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": f"U{number}"}
        await asker.send("T", str(number).encode(), properties=properties)
    await taken_in(asker, COUNT)


def lose_all(root: Path) -> None:
    """Have no file of timers be left."""
    shutil.rmtree(root / "timerlog")
    (root / "timerwheel").unlink()
    (root / "config" / "timercheck").unlink()


@pytest.mark.parametrize("settled_s", [0, 0.7])
async def test_each_message_comes_once(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path, settled_s: float
) -> None:
    await send_some_for_soon(asker)
    waiting = await again(asker, store_config, config, clock, tmp_path / "waiting")
    assert sorted(waiting) == list(range(COUNT))
    clock.ahead_ms += 60 * SECOND_MS
    assert len(await bodies(asker, COUNT // 2)) == COUNT // 2
    await asyncio.sleep(settled_s)  # the log is forced every half a second: with it or without, it is the same
    half_way = await again(asker, store_config, config, clock, tmp_path / "half-way")
    assert sorted(half_way) == list(range(COUNT))


async def test_what_came_is_not_repeated_where_the_clock_was_set_back_since(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    """It is due once more when the clock catches up, after a kill."""
    await send_some_for_soon(asker)
    work = stopped(asker)
    clock.ahead_ms += 60 * SECOND_MS
    work.run()
    assert len(await bodies(asker, COUNT // 2)) == COUNT // 2
    clock.ahead_ms = -1800 * SECOND_MS
    work.run()
    await has_checkpoint(asker, work, COUNT + 1)
    found = await again(asker, store_config, config, clock, tmp_path / "left")
    assert sorted(found) == list(range(COUNT))


async def test_what_came_is_not_repeated_where_the_clock_was_set_back_before_a_start(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    """A broker is killed before its checkpoint, and the next one with a clock that has not caught up yet."""
    await send_some_for_soon(asker)
    work, root = stopped(asker), tmp_path / "left"
    await has_checkpoint(asker, work, COUNT + 1)
    clock.ahead_ms += 60 * SECOND_MS
    work.run()
    assert len(await bodies(asker, COUNT // 2)) == COUNT // 2
    await asyncio.to_thread(picture, Path(store_config.root), root)
    clock.ahead_ms = -1800 * SECOND_MS
    left = replace(store_config, root=str(root), commitlog_path=str(root / "commitlog"))
    async with Broker(config, left, clock) as broker, RemotingClient({}) as client:
        second = Asker(broker, client, {})
        for count in (COUNT + 2, COUNT + 3):  # the second time when all that is due has been looked at
            await has_checkpoint(second, stopped(second), count)
        await asyncio.to_thread(picture, root, tmp_path / "left again")
    assert sorted(await from_picture(store_config, config, clock, tmp_path / "left again", COUNT)) == list(range(COUNT))


async def test_what_comes_behind_a_clock_that_was_set_back_is_there_after_a_kill(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    """It is due before the time up to which the last checkpoint has everything delivered."""
    work = stopped(asker)
    clock.ahead_ms += 1800 * SECOND_MS
    work.run()
    await has_checkpoint(asker, work, 1)
    clock.ahead_ms = 0
    for number, delay_s in enumerate((10, 600, 10)):
        await asker.send("T", b"%d" % number, properties={"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": f"U{number}"})
    asker.broker.store.dispatch()
    work.run()
    assert work.files.log.end > TIMER_UNIT_BYTES
    await asyncio.to_thread(picture, Path(store_config.root), tmp_path / "left")
    assert sorted(await from_picture(store_config, config, clock, tmp_path / "left", 3)) == [0, 1, 2]


async def test_what_comes_as_the_clock_is_set_back_is_there_after_a_kill(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    """The checkpoint that has it does not say that all is delivered that was due before."""
    work = stopped(asker)
    clock.ahead_ms += 1800 * SECOND_MS
    work.run()
    await has_checkpoint(asker, work, 1)
    clock.ahead_ms = 0
    await asker.send("T", b"0", properties={"TIMER_DELAY_SEC": "10", "UNIQ_KEY": "U0"})
    await has_checkpoint(asker, work, 3)
    await asyncio.to_thread(picture, Path(store_config.root), tmp_path / "left")
    assert await from_picture(store_config, config, clock, tmp_path / "left", 1) == [0]


async def test_what_is_delivered_stays_in_its_slot_until_the_log_is_forced(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    """Another message for its slot, as the clock was set back, waits; the power takes what was not forced."""
    work, root, other = stopped(asker), Path(store_config.root), tmp_path / "left"
    due_ms = clock() + 30 * SECOND_MS
    await asker.send("T", b"0", properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "U0"})
    await has_checkpoint(asker, work, 2)
    await asker.send("Other", properties={"TIMER_DELAY_SEC": "600"})
    asker.broker.store.dispatch()
    work.run()
    asker.broker.store.flush()
    flushed = asker.broker.store.flushed_offset
    await asyncio.to_thread(picture, root, other)
    clock.ahead_ms += 60 * SECOND_MS
    work.run()
    assert await bodies(asker, 1) == [0]
    clock.ahead_ms -= 60 * SECOND_MS
    await asker.send("T", b"1", properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "U1"})
    asker.broker.store.dispatch()
    work.run()
    work.files.save(clock(), flushed, lambda write: write())
    for name in ("config", "timerlog"):
        shutil.rmtree(other / name)
    (other / "timerwheel").unlink()
    for name in ("config", "timerlog"):
        shutil.copytree(root / name, other / name, ignore=_BEING_WRITTEN)
    shutil.copy(root / "timerwheel", other / "timerwheel")
    assert await from_picture(store_config, config, clock, other, 1) == [0]
    asker.broker.store.flush()
    clock.ahead_ms += 60 * SECOND_MS
    work.run()
    assert await bodies(asker, 2) == [0, 1]


def stopped(asker: Asker) -> Timers:
    """A broker's timers, which work when a test says so."""
    asker.broker._stop_periodic_work()
    assert asker.broker._timer_service is not None
    return asker.broker._timer_service


async def has_checkpoint(asker: Asker, work: Timers, count: int) -> None:
    """Send one message more, and have a checkpoint be written that has so many."""
    path = Path(asker.broker.store.config.root) / "config" / "timercheck"
    await asker.send("Other", properties={"TIMER_DELAY_SEC": "600"})
    asker.broker.store.dispatch()

    async def is_written() -> bool:
        work.run()
        asker.broker.store.flush()
        work.save()
        return path.exists() and TimerCheckpoint.decode(path.read_bytes()).last_timer_queue_offset == count

    await eventually(is_written, 60)


async def test_what_was_due_when_it_came_is_not_repeated(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    await asker.send("Warm", properties={"TIMER_DELAY_SEC": "600"})
    await taken_in(asker, 1)
    for number in range(COUNT):
        properties = {"TIMER_DELAY_MS": "1500", "UNIQ_KEY": f"U{number}"}
        await asker.send("T", str(number).encode(), properties=properties)
        clock.ahead_ms += 5 * SECOND_MS
    await bodies(asker, COUNT)
    found = await again(asker, store_config, config, clock, tmp_path / "left")
    assert sorted(found) == list(range(COUNT))


async def test_what_was_due_when_it_came_is_delivered_again_where_the_power_took_that(
    asker: Asker, store_config: StoreConfig, config: BrokerConfig, clock: Clock, tmp_path: Path
) -> None:
    """The unit of the message behind it is not forced either, and happens to be there."""
    asker.broker._stop_periodic_work()
    work, root = asker.broker._timer_service, tmp_path / "left"
    assert work is not None
    for number, delay_s in enumerate((10, 600)):
        await asker.send("T", b"%d" % number, properties={"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": f"U{number}"})
    asker.broker.store.dispatch()
    clock.ahead_ms += 60 * SECOND_MS
    await asyncio.to_thread(picture, Path(store_config.root), root)
    work.run()
    assert len(await bodies(asker, 1)) == 1
    shutil.copytree(Path(store_config.root) / "timerlog", root / "timerlog")
    assert sorted(await from_picture(store_config, config, clock, root, 2)) == [0, 1]


async def test_files_that_are_lost_are_made_again(asker: Asker, store_config: StoreConfig, clock: Clock) -> None:
    """The timer topic has all messages."""
    for number in range(COUNT):
        await asker.send("T", str(number).encode(), properties={"TIMER_DELAY_SEC": "600"})
    await taken_in(asker, COUNT)
    await asker.broker.close()
    lose_all(Path(store_config.root))
    await asker.broker.start()
    clock.ahead_ms += 700 * SECOND_MS
    assert sorted(await bodies(asker, COUNT)) == list(range(COUNT))
    assert len(messages(await asker.pull("T"))) == COUNT


async def test_what_came_is_not_repeated_where_the_files_never_were(
    asker: Asker, store_config: StoreConfig, clock: Clock
) -> None:
    """As with a slave that becomes a master, and a broker that is killed before its first checkpoint."""
    await send_some_for_soon(asker)
    clock.ahead_ms += 60 * SECOND_MS
    await bodies(asker, COUNT // 2)
    await asker.broker.close()
    lose_all(Path(store_config.root))
    await asker.broker.start()
    clock.ahead_ms += 700 * SECOND_MS
    assert sorted(await bodies(asker, COUNT)) == list(range(COUNT))


def lose(root: Path, name: str) -> None:
    """Have files be gone, or empty."""
    if name == "timerlog":
        shutil.rmtree(root / name, ignore_errors=True)
    elif name == "last file of timerlog":
        for path in sorted((root / "timerlog").glob("*"))[-1:]:
            path.write_bytes(b"")
    elif name == "timerwheel":
        (root / name).unlink(missing_ok=True)
    else:
        (root / "timerwheel").write_bytes(b"")


@pytest.mark.parametrize("name", ["timerlog", "last file of timerlog", "timerwheel", "content of timerwheel"])
async def test_a_file_that_is_lost_alone_loses_and_repeats_nothing(
    asker: Asker, store_config: StoreConfig, clock: Clock, name: str
) -> None:
    async def send(numbers: range, delay_s: int) -> None:
        for number in numbers:
            properties = {"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": f"U{number}"}
            await asker.send("T", str(number).encode(), properties=properties)

    await send(range(10), 10)
    await send(range(10, 20), 3 * 86_400 - 5)
    await taken_in(asker, 20)
    clock.ahead_ms += 2 * DAY_MS + 60 * SECOND_MS
    await taken_in(asker, 30)  # ten wait on
    await bodies(asker, 10)
    await send(range(20, COUNT), 600)
    await taken_in(asker, COUNT + 10)
    for _ in range(2):
        await asker.broker.close()
        lose(Path(store_config.root), name)
        await asker.broker.start()
    clock.ahead_ms += DAY_MS
    await asker.send("Mark", properties={"TIMER_DELAY_SEC": "10"})
    clock.ahead_ms += 100 * SECOND_MS
    await pulled(asker, "Mark")
    assert sorted(await bodies(asker, COUNT)) == list(range(COUNT))
    await asker.broker.close()
    assert (Path(store_config.root) / "timerwheel").stat().st_size == WHEEL_FILE_BYTES
    await asker.broker.start()


async def test_a_start_need_not_read_all_that_came_since_nothing_was_due(
    asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_core.store.timer.store._CHECKPOINT_LOG_BYTES", 1000)
    await asker.send("T", properties={"TIMER_DELAY_SEC": "600"})
    await taken_in(asker, 1)
    for _ in range(20):
        await asker.send("Other")
    end = asker.broker.store.max_physical_offset
    assert asker.broker._timer_service is not None
    files = asker.broker._timer_service.files

    async def is_noted() -> bool:
        return files.done.scan_offset > end - 1000

    await eventually(is_noted, 30)


async def test_checkpoints_are_written_while_the_disk_lags_behind(asker: Asker, store_config: StoreConfig) -> None:
    """As under a steady load: what is taken in last is never on the disk."""
    await asker.send("T", properties={"TIMER_DELAY_SEC": "600"})
    await taken_in(asker, 1)
    asker.broker._stop_periodic_work()
    asker.broker.store.flush()
    work, flushed = asker.broker._timer_service, asker.broker.store.flushed_offset
    assert work is not None

    async def is_idle() -> bool:  # a checkpoint that a clock began is written by another thread
        return not work.files._is_writing

    await eventually(is_idle)
    await asker.send("T", properties={"TIMER_DELAY_SEC": "600"})
    asker.broker.store.dispatch()
    work.run()
    assert work.files.log.end == 2 * TIMER_UNIT_BYTES
    work.files.save(1, flushed, lambda write: write())
    found = TimerCheckpoint.decode((Path(store_config.root) / "config" / "timercheck").read_bytes())
    assert (found.last_timer_queue_offset, found.last_timer_log_flush_position) == (1, TIMER_UNIT_BYTES)
