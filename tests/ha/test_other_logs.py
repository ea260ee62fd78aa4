"""A slave whose log is not the beginning of its master's: it takes nothing, says so, and is not in sync."""

import asyncio
from pathlib import Path

import pytest

from rmq_core.ha import master as ha_master
from rmq_core.ha.frames import encode_push, encode_report
from rmq_core.ha.log_comparison import FROM_START, REPEATS_AT_START
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.stats import HaStatus
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, eventually
from tests.ha.conftest import FILE_BYTES, caught_up, log_of, running, slave_of, store_of, written
from tests.ha.test_replication import fill, stored
from tests.store.small_stores import cut_log, log_records

QUICK = {"ha_send_heartbeat_interval_ms": 100}  # two heartbeats without bytes between them are a log's end


async def parted(tmp_path: Path, count: int) -> tuple[StoreConfig, StoreConfig, int]:
    """A master and its slave that both have some messages, and stop; the master loses a third of them.

    Returns:
        Their stores, and where the master's log ends now.
    """
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master, running(slave_store, **slave_of(master)) as slave:
        await fill(master, count)
        await caught_up(slave.broker, master.broker)
    cut = log_records(master_store)[count * 2 // 3][0]
    cut_log(master_store, cut)
    for path in Path(master_store.commitlog_path).iterdir():
        if int(path.name) > cut:
            path.unlink()
    for name in ("watermark", "checkpoint"):
        (tmp_path / "master" / name).unlink()
    return master_store, slave_store, cut


def lose(store: StoreConfig, number: int) -> int:
    """Have a store be as after a loss of power that took one record; where that was."""
    lost, record = log_records(store)[number]
    start = lost - lost % FILE_BYTES
    with (Path(store.commitlog_path) / f"{start:020d}").open("r+b") as file:
        file.seek(lost - start)
        file.write(bytes(len(record)))
    for name in ("watermark", "checkpoint"):
        (Path(store.root) / name).unlink()
    (Path(store.root) / "abort").touch()
    return lost


async def wait_until_diverged(slave: Asker) -> None:
    """Wait until a slave reports that its log differs from the master's."""

    async def reports_divergence() -> bool:
        return "this log (" in slave.broker.state.replication.slave.refusal_reason  # type: ignore[union-attr]

    await eventually(reports_divergence, 60)


async def grow(master: Asker, count: int, body: bytes) -> None:
    for number in range(count):
        assert (await master.send("T", body, queue_id=number % 2)).code == 0


async def check_common_offset(master: Asker, slave: Asker, common: int, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until the slave reports the end of the common log; neither server counts the slave as in sync."""
    await wait_until_diverged(slave)
    assert f"is identical to the master's only up to offset {common}" in caplog.text
    master_status, slave_status = [decode_body((await peer.ask(907)).body, HaStatus) for peer in (master, slave)]
    assert master_status.in_sync_slave_nums == 0
    assert not slave_status.ha_client_runtime_info.activated
    assert not slave.broker.state.replication.is_following


@pytest.mark.parametrize("size", [3003, 2000, 70, 5000])  # of bodies; 3003: records begin where they did before
@pytest.mark.parametrize("count", [12, 60])  # in one file of the log, and in several
async def test_a_master_that_lost_its_tail_and_has_outgrown_its_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int, count: int
) -> None:
    master_store, slave_store, cut = await parted(tmp_path, count)
    before = log_of(slave_store)
    async with running(master_store, **QUICK) as master:
        assert master.broker.store.max_physical_offset == cut
        await grow(master, count * 3003 // size, bytes(size))
        async with running(slave_store, **slave_of(master)) as slave:
            assert master.broker.store.max_physical_offset > slave.broker.store.max_physical_offset
            await check_common_offset(master, slave, cut, caplog)
    assert log_of(slave_store) == before


@pytest.mark.parametrize("grown", [0, 1])
async def test_a_master_that_lost_its_tail_and_is_behind_its_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, grown: int
) -> None:
    master_store, slave_store, cut = await parted(tmp_path, 60)
    before = log_of(slave_store)
    async with running(master_store, **QUICK) as master, running(slave_store, **slave_of(master)) as slave:
        await grow(master, grown, b"new")
        await check_common_offset(master, slave, cut, caplog)
    assert log_of(slave_store) == before


async def test_a_master_that_lost_something_far_before_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master, running(slave_store, **slave_of(master)) as slave:
        await fill(master, 60)
        await caught_up(slave.broker, master.broker)
    lost = lose(master_store, 10)
    async with running(master_store, **QUICK) as master:  # its recovery finds the hole, ...
        assert len(master.broker.store.recovery.damages) == 1
    async with running(master_store, **QUICK) as master, running(slave_store, **slave_of(master)) as slave:
        assert master.broker.store.recovery.damages == ()  # ... which is known at later starts, too
        await check_common_offset(master, slave, lost, caplog)


async def test_a_log_with_nothing_in_common(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slave_store = store_of(tmp_path / "slave")
    async with running(slave_store) as before:
        await fill(before, 30)
        end = before.broker.store.max_physical_offset
    async with running(store_of(tmp_path / "master")) as master, running(slave_store, **slave_of(master)) as slave:
        await wait_until_diverged(slave)
        await grow(master, 60, b"." * 3003)  # it stays another log when this one is as long
        assert master.broker.store.max_physical_offset > end
    async with running(store_of(tmp_path / "master")) as master, running(slave_store, **slave_of(master)) as slave:
        await wait_until_diverged(slave)
        assert slave.broker.store.max_physical_offset == end
    told = f"this log (0 to {end}) has nothing in common with the master's. Delete this store"
    assert caplog.text.count(told) == 2


async def first_answer(master: Asker, offset: int) -> bytes:
    """What a slave that compares nothing, as Java's, is answered when its log ends at an offset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", master.broker.state.replication.port)
    writer.write(encode_report(offset))
    head = await reader.readexactly(12)
    writer.close()
    return head


async def test_first_reports_that_come_in_pieces_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_master, "MORE_REPEATS_S", 60)
    master_store = store_of(tmp_path / "master")
    async with running(master_store) as master:
        await fill(master, 60)
    lose(master_store, 30)  # so the master has slaves compare from its log's beginning on
    async with running(master_store) as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", master.broker.state.replication.port)
        reports = encode_report(FROM_START) * REPEATS_AT_START
        for begin, end in ((0, 5), (5, 16), (16, 24)):
            writer.write(reports[begin:end])
            await asyncio.sleep(0.02)
        head = await reader.readexactly(12)
        writer.close()
    assert head[:8] == encode_push(FROM_START, 0)[:8]
    assert int.from_bytes(head[8:], "big") > 0


async def test_a_slave_that_compares_nothing_is_told_where_no_record_begins(tmp_path: Path) -> None:
    master_store = store_of(tmp_path / "master")
    async with running(master_store) as master:
        await fill(master, 60)
        begins = [offset for offset, _ in log_records(master_store)]
        assert await first_answer(master, begins[7]) != encode_push(begins[7] - 1, 0)
    async with running(master_store) as master:
        for offset in (begins[7] + 1, begins[8] - 1, begins[-1] + 40):
            assert await first_answer(master, offset) == encode_push(offset - 1, 0)
            assert not master.broker.state.replication.master.slaves
        assert (await first_answer(master, begins[9]))[:8] == encode_push(begins[9], 0)[:8]

        async def may_begin() -> bool:  # as its connection was cut within a record that was pushed to it
            return await first_answer(master, begins[7] + 1) != encode_push(begins[7], 0)

        await eventually(may_begin)


@pytest.mark.parametrize("number", [10, 25])
async def test_a_slave_that_lost_something_before_its_end_has_it_sent_again(tmp_path: Path, number: int) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master:
        settings = slave_of(master)
        async with running(slave_store, **settings) as slave:
            await fill(master, 60)
            await caught_up(slave.broker, master.broker)
        lose(slave_store, number)
        async with running(slave_store, **settings) as slave:
            assert slave.broker.store.recovery.end_offset == log_records(master_store)[number][0]
            await caught_up(slave.broker, master.broker)
            assert stored(slave) == stored(master)
            end = master.broker.store.max_physical_offset
    assert written(slave_store, end) == written(master_store, end)
