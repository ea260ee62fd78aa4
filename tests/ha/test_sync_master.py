"""Senders of a SYNC_MASTER are answered when slaves have their messages, and a peer cannot pretend that."""

import asyncio
from pathlib import Path
from typing import Any

from rmq_core.ha.frames import encode_push, encode_report
from rmq_core.ha.master import HaMaster
from tests.broker.conftest import Asker, eventually
from tests.ha.conftest import caught_up, running, running_pair, slave_of, store_of
from tests.ha.test_replication import stored

SYNC = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout_ms": 60_000}
FLUSH_SLAVE_TIMEOUT = 12


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(master: Asker) -> Peer:
    """Be a peer at the port of slaves."""
    return await asyncio.open_connection("127.0.0.1", master.broker.state.replication.port)


async def test_a_sender_waits_for_the_slave(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master"), **SYNC) as master:
        sending = asyncio.create_task(master.send("T", b"first"))
        async with running(store_of(tmp_path / "slave"), **slave_of(master)) as slave:
            assert (await sending).code == 0
            assert [one.body for one in stored(slave)] == [b"first"]
            for _ in range(10):
                assert (await master.send("T")).code == 0
            assert slave.broker.store.max_physical_offset == master.broker.store.max_physical_offset


async def test_without_a_slave_the_message_is_stored_and_the_answer_is_12(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master"), **SYNC | {"slave_timeout_ms": 50}) as master:
        answer = await master.send("T")
        assert answer.code == FLUSH_SLAVE_TIMEOUT
        assert answer.ext_fields["queueOffset"] == "0"
        assert len(stored(master)) == 1
        unwaited = await master.send("T", properties={"UNIQ_KEY": "0A", "WAIT": "false"})
        assert unwaited.code == 0


async def test_two_slaves_are_two(tmp_path: Path) -> None:
    settings: dict[str, Any] = SYNC | {"in_sync_replicas": 3, "slave_timeout_ms": 500}
    async with running_pair(tmp_path, settings) as (master, slave):
        assert (await master.send("T")).code == FLUSH_SLAVE_TIMEOUT
        await caught_up(slave.broker, master.broker)
    settings["slave_timeout_ms"] = 60_000
    async with (
        running(store_of(tmp_path / "master"), **settings) as master,
        running(store_of(tmp_path / "slave"), **slave_of(master)),
        running(store_of(tmp_path / "second"), **slave_of(master)) as second,
    ):
        assert (await master.send("T")).code == 0
        assert second.broker.store.max_physical_offset == master.broker.store.max_physical_offset


async def test_a_slave_that_comes_again_beside_its_half_open_connection_is_one(tmp_path: Path) -> None:
    """Both have acknowledged the message. Of another slave on that host the old one is, if it acknowledges later ones.

    So a connection counts again as soon as it acknowledges what it was sent after the new one had begun.
    """
    async with running(store_of(tmp_path / "master"), **SYNC | {"in_sync_replicas": 3}) as master:
        ours = master.broker.state.replication.master
        peers: list[Peer] = []
        try:
            await join(master, peers, 0)
            sending = [asyncio.create_task(master.send("T"))]
            end = await pushed(ours, beyond=0)
            await acknowledge(ours, peers, end)
            await join(master, peers, end)
            await acknowledge(ours, peers, end)
            assert ours.acknowledged_offset == 0
            sending.append(asyncio.create_task(master.send("T")))
            later = await pushed(ours, beyond=end)
            await acknowledge(ours, peers, later)
            assert ours.acknowledged_offset == later
            assert [(await one).code for one in sending] == [0, 0]
        finally:
            for _, writer in peers:
                writer.close()


async def join(master: Asker, peers: list[Peer], offset: int) -> None:
    """Have one more slave, which has the log up to an offset."""
    ours = master.broker.state.replication.master
    peers.append(await connect(master))
    peers[-1][1].write(encode_report(offset))

    async def is_taken() -> bool:
        return [slave.pushed_offset >= 0 for slave in ours.slaves] == [True] * len(peers)

    await eventually(is_taken, 60)


async def pushed(master: HaMaster, beyond: int) -> int:
    """The log's end, when all slaves are pushed it and it has come beyond an offset."""

    async def is_pushed() -> bool:
        end = master.store.max_physical_offset
        return end > beyond and all(slave.pushed_offset == end for slave in master.slaves)

    await eventually(is_pushed, 60)
    return master.store.max_physical_offset


async def acknowledge(master: HaMaster, peers: list[Peer], offset: int) -> None:
    """Have all slaves acknowledge an offset."""
    for _, writer in peers:
        writer.write(encode_report(offset))

    async def is_noted() -> bool:
        return [slave.acknowledged_offset for slave in master.slaves] == [offset] * len(peers)

    await eventually(is_noted, 60)


async def test_what_was_not_sent_cannot_be_acknowledged(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master"), **SYNC | {"slave_timeout_ms": 300}) as master:
        reader, writer = await connect(master)
        writer.write(encode_report(0))
        sending = asyncio.create_task(master.send("T"))
        head = await reader.readexactly(12)
        assert head[:8] == bytes(8)
        writer.write(encode_report(int.from_bytes(head[8:], "big") + 1))
        await reader.read()  # to the end, which comes at once
        assert (await sending).code == FLUSH_SLAVE_TIMEOUT
        assert not master.broker.state.replication.master.slaves
        writer.close()


async def test_a_negative_offset_and_one_beyond_the_log_are_refused(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master"), **SYNC) as master:
        for offset in (-1, 1, 1 << 62):
            reader, writer = await connect(master)
            writer.write(encode_report(offset))
            assert await reader.read() == encode_push(0, 0)  # which is another place, and ends a slave of Java's
            writer.close()


async def test_an_idle_slave_gets_heartbeats(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master"), ha_send_heartbeat_interval_ms=50) as master:
        reader, writer = await connect(master)
        writer.write(encode_report(0))
        assert await reader.readexactly(36) == 3 * encode_push(0, 0)
        writer.close()


async def test_a_silent_slave_is_let_go(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master"), ha_housekeeping_interval_ms=200) as master:
        reader, writer = await connect(master)
        writer.write(encode_report(0))
        assert await reader.read() == b""
        writer.close()
