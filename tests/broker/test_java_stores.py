"""Stores of the original behind our broker: what it left is served, and its tables are gone on with."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, messages
from tests.conftest import MIXED_DELAY_LEVELS

Queues = dict[tuple[str, int], list[str]]


@pytest.fixture(params=["mixed", "crash"])
def golden_copy(request: pytest.FixtureRequest, golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """A golden store and what is expected of it; writable."""
    return Path(shutil.copytree(golden(request.param), tmp_path / request.param))


@pytest.fixture
def store_config(golden_copy: Path) -> StoreConfig:
    return StoreConfig(
        root=str(golden_copy / "store"),
        commitlog_file_bytes=1 << 20,
        consumequeue_file_bytes=2000,
        index_slots=500,
        index_entries=2000,
        delay_levels=MIXED_DELAY_LEVELS,
        disk_max_used_ratio=99,
        disk_warning_ratio=100,
        file_reserved_hours=24 * 3650,
    )


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig(listen_port=0, broker_name="golden-a", broker_cluster_name="GoldenCluster")


def expected(directory: Path) -> Queues:
    """Ids of the messages that consumers can see, by queue and in order."""
    found: Queues = defaultdict(list)
    for line in (directory / "expected" / "messages.jsonl").read_text().splitlines():
        message = json.loads(line)
        if message["sys_flag"] & 0xC in (0, 8):
            found[message["topic"], message["queue_id"]].append(message["msg_id"])
    return found


async def everything(asker: Asker, topic: str, queue_id: int) -> list[str]:
    found: list[str] = []
    offset = 0
    while True:
        answer = await asker.pull(topic, offset, queue_id)
        if answer.code != 0:
            return found
        found += [message.msg_id for message in messages(answer)]
        offset = int(answer.ext_fields["nextBeginOffset"])


async def test_every_message_of_the_original_is_served(asker: Asker, golden_copy: Path) -> None:
    queues = {key: ids for key, ids in expected(golden_copy).items() if key[0] in asker.broker.state.topics.table}
    assert len(queues) > 20
    for (topic, queue_id), ids in queues.items():
        served = await everything(asker, topic, queue_id)
        assert served[: len(ids)] == ids, (topic, queue_id)


@pytest.mark.parametrize("golden_copy", ["mixed"], indirect=True)  # one that is killed has not written them all
async def test_offsets_and_tables_of_the_original_go_on(asker: Asker, golden_copy: Path) -> None:
    state = asker.broker.state
    assert state.offsets.of("Orders", "golden_cg_ok") == {0: 182, 1: 182, 2: 182, 3: 182}
    assert {"golden_cg", "golden_cg_ok"} <= state.groups.table.keys()
    place: dict[str, object] = {"consumerGroup": "golden_cg_ok", "topic": "Orders", "queueId": 1}
    assert (await asker.ask(14, place)).ext_fields == {"offset": "182"}
    sent = await asker.send("Orders", b"one more")
    assert sent.ext_fields["queueOffset"] == str(len(expected(golden_copy)["Orders", 0]))
