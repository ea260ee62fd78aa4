"""A master of ours and slaves of ours."""

from pathlib import Path

from rmq_core.remoting.header import RemotingCommand
from rmq_formats.message import StoredMessage
from tests.broker.conftest import Asker, messages
from tests.ha.conftest import FILE_BYTES, caught_up, running, slave_of, store_of, written

BODY = b"." * 3000


async def fill(master: Asker, count: int, first: int = 0) -> None:
    """Send messages to two queues."""
    for number in range(first, first + count):
        answer = await master.send("T", b"%d " % number + BODY, queue_id=number % 2)
        assert answer.code == 0, answer


def stored(asker: Asker, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """The messages of a queue, as a store has them."""
    found: list[StoredMessage] = []
    while slices := asker.broker.store.get(topic, queue_id, len(found), 32).slices:
        found += messages(RemotingCommand(0, body=b"".join(slices)))
    return found


async def test_a_slave_ends_with_its_masters_log(tmp_path: Path) -> None:
    ours, theirs = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(ours) as master, running(theirs, **slave_of(master)) as slave:
        await fill(master, 100)
        await caught_up(slave.broker, master.broker)
        assert stored(slave) == stored(master)
        assert len(stored(slave)) == 50
        end = master.broker.store.max_physical_offset
        assert end > 4 * FILE_BYTES
    assert written(theirs, end) == written(ours, end)
    assert len(written(ours, end)) > 4
