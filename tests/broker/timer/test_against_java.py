"""The original opens a store whose wheel we have turned, and we one that it has."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.layout import MAGIC_BLANK
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.timer import (
    BLANK,
    FLAG_DELETE,
    SLOT_BYTES,
    TIMER_UNIT_BYTES,
    WHEEL_FILE_BYTES,
    WHEEL_SLOTS,
    TimerCheckpoint,
    TimerSlot,
    TimerUnit,
)
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.store import Store
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store
from tests.broker.timer.test_delivery import SECOND_MS, taken_in
from tests.broker.timer.test_recall import recall, sent
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, free_port, java

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("timers_against_java")]

NAME = "broker-t"
FILE_BYTES = 7 * TIMER_UNIT_BYTES + BLANK.size
HOUR_MS = 3_600_000
START_S = 120  # of a Java process on a busy machine
SETTINGS = (
    f"{SMALL_FILES}brokerName={NAME}\nmappedFileSizeTimerLog={FILE_BYTES}\nrecallMessageEnable=true\n"
    "fileReservedTime=87600\n"
)


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig(
        listen_port=0,
        broker_name=NAME,
        broker_cluster_name="InteropCluster",
        recall_message_enable=True,
        timer_log_file_bytes=FILE_BYTES,
    )


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    """A store as the original's release makes it: recalls are stored as it reads them."""
    return replace(small_store(tmp_path / "store"), index_tags=peer.index_tags())


class JavaAsker(Asker):
    """A client of the original's broker."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self._address = address
        self.client = client

    async def ask(
        self, code: int, fields: dict[str, object] | None = None, body: bytes = b"", version: int = 479
    ) -> RemotingCommand:
        command = request(code, {name: str(value) for name, value in (fields or {}).items()}, body)
        command.version = version
        return await self.client.invoke(self._address, command, 10)


async def came(asker: Asker, topic: str, count: int) -> list[StoredMessage]:
    """The messages of a queue, once there are so many; a broker that starts is waited for."""
    deadline = asyncio.get_running_loop().time() + START_S
    found: list[StoredMessage] = []
    while len(found) < count and asyncio.get_running_loop().time() < deadline:
        try:
            found = messages(await asker.pull(topic, suspendTimeoutMillis=100))
        except RemotingError:
            await asyncio.sleep(0.2)
    assert len(found) == count
    return found


def check_files(root: Path) -> None:
    """The original's files are as our codecs have them, and agree with each other and with its log."""
    records = {one.physical_offset: one for one in Store(str(root)).messages() if one.topic == TIMER_TOPIC}
    checkpoint = TimerCheckpoint.decode((root / "config" / "timercheck").read_bytes())
    units: dict[int, TimerUnit] = {}
    for path in sorted((root / "timerlog").iterdir()):
        data = path.read_bytes()
        for at in range(0, len(data) - TIMER_UNIT_BYTES, TIMER_UNIT_BYTES):
            if data[at : at + TIMER_UNIT_BYTES] != bytes(TIMER_UNIT_BYTES):
                units[int(path.name) + at] = TimerUnit.decode(data, at)
                assert units[int(path.name) + at].encode() == data[at : at + TIMER_UNIT_BYTES]
        blank = BLANK.unpack_from(data, len(data) - BLANK.size)
        assert blank in ((BLANK.size, 0, MAGIC_BLANK), (0, 0, 0))
    assert checkpoint.last_timer_queue_offset == len(records) == len(units)
    wheel = (root / "timerwheel").read_bytes()
    assert len(wheel) == WHEEL_FILE_BYTES
    for position, unit in units.items():
        record = records[unit.physical_offset]
        assert (record.size, str(unit.due_ms)) == (unit.size, record.properties["TIMER_OUT_MS"])
        assert bool(unit.flags & FLAG_DELETE) == ("TIMER_DEL_UNIQKEY" in record.properties)
        slot = TimerSlot.decode(wheel, unit.due_ms // SECOND_MS % WHEEL_SLOTS * SLOT_BYTES)
        if unit.due_ms >= checkpoint.last_read_time_ms:
            assert slot.time_index == unit.due_ms // SECOND_MS
            assert slot.first <= position <= slot.last
            assert unit.previous in (-1, *units)


@pytest.mark.long
async def test_a_store_goes_to_the_original_and_back(
    asker: Asker, clock: Clock, store_config: StoreConfig, config: BrokerConfig, tmp_path: Path
) -> None:
    await asyncio.to_thread(peer.build)
    clock.ahead_ms = -HOUR_MS  # what waits is due when the original starts
    handles = [await sent(asker, "Ours", f"U{number}", 300 + number // 4) for number in range(20)]
    for handle in handles[5:8]:
        assert (await recall(asker, handle, "Ours")).code == 0
    await taken_in(asker, 23)
    await asker.broker.close()
    kept = {f"U{number}".encode() for number in range(20) if not 5 <= number < 8}

    conf, port = tmp_path / "broker.conf", free_port()
    conf.write_text(f"{SETTINGS}listenPort={port}\nhaListenPort={free_port()}\n")
    with (
        (tmp_path / "java.log").open("wb") as log,
        java(log, "broker", store_config.root, str(conf)) as process,
    ):
        async with RemotingClient({}) as client:
            original = JavaAsker(f"127.0.0.1:{port}", client)
            # Three threads of the original deliver an interval.
            assert {one.body for one in await came(original, "Ours", 17)} == kept
            theirs = [await sent(original, "Theirs", f"J{number}", 5000 + number) for number in range(12)]
            for handle in theirs[::4]:
                assert (await recall(original, handle, "Theirs")).code == 0

            async def all_are_in() -> bool:
                answer = await original.ask(RequestCode.GET_TIMER_CHECK_POINT)
                return TimerCheckpoint.decode(bytes(answer.body)).last_timer_queue_offset == 23 + 15

            await eventually(all_are_in, START_S)
        process.terminate()
        assert await asyncio.to_thread(process.wait, START_S) in (0, 143)
    await asyncio.to_thread(check_files, Path(store_config.root))

    clock.ahead_ms = 2 * HOUR_MS
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        again = Asker(broker, client, {})
        expected = [f"J{number}".encode() for number in range(12) if number % 4]
        assert [one.body for one in await came(again, "Theirs", 9)] == expected
        assert len(messages(await again.pull("Ours"))) == 17
    await asker.broker.start()  # the fixture closes it


@pytest.mark.long
async def test_what_the_original_keeps_in_snapshots_comes_here(
    clock: Clock, store_config: StoreConfig, config: BrokerConfig, tmp_path: Path
) -> None:
    """Since 5.4, with ``timerWheelSnapshotFlush``; its ``timerwheel`` stays empty."""
    root, conf, port = Path(store_config.root), tmp_path / "broker.conf", free_port()
    more = "timerWheelSnapshotFlush=true\ntimerWheelSnapshotIntervalMs=100\n"
    conf.write_text(f"{SETTINGS}{more}listenPort={port}\nhaListenPort={free_port()}\n")
    with (
        peer.running(peer.version() if peer.is_from_5_4() else peer.NEWEST),
        (tmp_path / "java.log").open("wb") as log,
        java(log, "broker", store_config.root, str(conf)) as process,
    ):
        async with RemotingClient({}) as client:
            original = JavaAsker(f"127.0.0.1:{port}", client)

            async def is_there() -> bool:
                with suppress(RemotingError):
                    return (await original.send("There")).code == 0
                return False

            await eventually(is_there, START_S)
            handles = [await sent(original, "Theirs", f"J{number}", 5000 + number) for number in range(12)]
            assert (await recall(original, handles[4], "Theirs")).code == 0

            async def has_snapshot() -> bool:
                return any(int(path.suffix[1:]) >= FILE_BYTES for path in root.glob("timerwheel.*[0-9]"))

            await eventually(has_snapshot, START_S)
        process.kill()
        await asyncio.to_thread(process.wait, START_S)
    assert not any((root / "timerwheel").read_bytes())
    clock.ahead_ms = 2 * HOUR_MS
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        expected = [f"J{number}".encode() for number in range(12) if number != 4]
        assert [one.body for one in await came(Asker(broker, client, {}), "Theirs", 11)] == expected
