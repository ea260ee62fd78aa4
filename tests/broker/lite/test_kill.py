"""A broker that is killed: what was acknowledged stays so, the rest comes again when clients subscribe again."""

import json
import time
from pathlib import Path

import pytest

from rmq_core.remoting.client import RemotingClient
from tests.broker.conftest import Asker
from tests.broker.lite.conftest import GROUP, Watcher, make_group, make_parent, send
from tests.broker.timer.test_against_java import JavaAsker
from tests.support.processes.broker_processes import configured

SETTINGS = (
    "mappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\nenableLmq=true\nenableMultiDispatch=true\n"
    "flushDiskType=SYNC_FLUSH\nflushConsumerOffsetInterval=50\n"
)


async def before(asker: Asker) -> None:
    await make_parent(asker)
    await make_group(asker)
    watcher = Watcher(asker)
    await watcher.add("d1")
    for number in range(3):
        assert (await send(asker, "d1", b"%d" % number)).code == 0
    got = await watcher.pop()
    assert (await watcher.ack(got[0])).code == 0


async def after(asker: Asker) -> list[tuple[bytes, int]]:
    watcher = Watcher(asker)
    assert await watcher.pop() == []  # it has not subscribed yet
    await watcher.add("d1")
    return [(one.body, one.offset) for one in await watcher.pop(pollTime=2000)]


def saved_offset(store: Path) -> int | None:
    path = store / "config" / "lmqConsumerOffset.json"
    table = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
    return table.get(f"%LMQ%$Devices$d1@{GROUP}", {}).get("0")


@pytest.mark.torture
async def test_offsets_are_kept_and_the_rest_comes_again(tmp_path: Path) -> None:
    with configured(tmp_path, SETTINGS) as running:
        async with RemotingClient() as client:
            await before(JavaAsker(running.broker, client))
        until = time.monotonic() + 20
        while saved_offset(tmp_path / "store") != 1:
            assert time.monotonic() < until
            time.sleep(0.05)
        running.process.kill()
        running.process.wait()
    with configured(tmp_path, SETTINGS) as running:
        async with RemotingClient() as client:
            assert await after(JavaAsker(running.broker, client)) == [(b"1", 1), (b"2", 2)]
