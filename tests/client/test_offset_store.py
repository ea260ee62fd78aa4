"""The file with offsets of a broadcasting consumer."""

from pathlib import Path

import pytest

from rmq_core.client import MessageQueue
from rmq_core.client.offset_store import LocalOffsets
from rmq_formats.errors import StoreError

ONE, TWO = (MessageQueue(topic="TopicTest", broker_name="broker-a", queue_id=number) for number in (3, 0))
# As LocalFileOffsetStore of the original writes it.
JAVAS = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":3,
\t\t\t"topic":"TopicTest"
\t\t}:7,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"TopicTest"
\t\t}:12
\t}
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "client" / "group" / "offsets.json"


async def test_offsets_come_back(path: Path) -> None:
    offsets = LocalOffsets(path)
    assert await offsets.read(ONE) is None
    offsets.update(ONE, 5)
    offsets.update(TWO, 6)
    await offsets.persist([ONE])
    again = LocalOffsets(path)
    assert (await again.read(ONE), await again.read(TWO)) == (5, None)
    assert again.known(ONE) == 5


async def test_a_file_of_javas_is_read_and_its_other_queues_stay(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(JAVAS)
    offsets = LocalOffsets(path)
    assert (await offsets.read(ONE), await offsets.read(TWO)) == (7, 12)
    offsets.update(ONE, 8)
    await offsets.persist([ONE])
    assert (await LocalOffsets(path).read(ONE), await LocalOffsets(path).read(TWO)) == (8, 12)
    assert path.with_name("offsets.json.bak").read_text() == JAVAS
    assert path.read_text() == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}:8,'
        '{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:12}}'
    )


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"offsetTable":{"x":1}}', b"\xff"])
async def test_the_state_before_counts_where_the_file_is_damaged(path: Path, damaged: bytes) -> None:
    offsets = LocalOffsets(path)
    for offset in (5, 6):
        offsets.update(ONE, offset)
        await offsets.persist([ONE])
    path.write_bytes(damaged)
    assert await LocalOffsets(path).read(ONE) == 5


async def test_it_is_an_error_if_both_are_damaged(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    path.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(StoreError, match="offsets cannot be read"):
        await LocalOffsets(path).read(ONE)


def test_only_higher_offsets_count_unless_told_otherwise(path: Path) -> None:
    offsets = LocalOffsets(path)
    offsets.update(ONE, 5)
    offsets.update(ONE, 3)
    assert offsets.known(ONE) == 5
    offsets.update(ONE, 3, only_up=False)
    assert offsets.known(ONE) == 3
    offsets.forget(ONE)
    assert offsets.known(ONE) is None
