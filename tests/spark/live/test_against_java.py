"""The source and the sink ``rmq``, and a replay, at the real Java name server and broker."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq_core.client import Admin
from rmq_core.remoting.loop import run
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, free_port, java, wait_for
from tests.jobs.replayed_messages import Messages, expected_messages, make_topics, replay_store, sent_messages
from tests.spark.live.scenarios import *  # noqa: F403 # the tests themselves

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Java name server's address, with a Java broker registered."""
    peer.build()
    directory = tmp_path_factory.mktemp("live-java")
    port = free_port()
    address = f"127.0.0.1:{port}"
    conf = directory / "broker.conf"
    conf.write_text(
        f"{SMALL_FILES}brokerName=live-java\nenablePropertyFilter=true\nnamesrvAddr={address}\n"
        f"listenPort={free_port()}\nhaListenPort={free_port()}\n"
    )
    with ExitStack() as stack:
        log = stack.enter_context((directory / "java.log").open("wb"))
        stack.enter_context(java(log, "namesrv", str(port)))
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf)))
        run(until_there(address))
        yield address


async def until_there(address: str) -> None:
    """Wait for the broker at the name server."""
    async with asyncio.timeout(180), Admin(address) as admin:
        while True:
            try:
                if await admin.masters() and "TBW102" in await admin.topics():
                    return
            except Exception:
                await asyncio.sleep(0.2)


@pytest.mark.long
def test_java_takes_what_is_replayed(namesrv: str, golden: Callable[[str], Path]) -> None:
    directory = golden("mixed")
    expected = expected_messages(directory)
    make_topics(namesrv, expected)
    report, code = replay_store(directory / "store", namesrv)
    assert (code, report["messages"]) == (0, sum(map(len, expected.values())))
    # Java acknowledges what it has not dispatched yet; a queue's end comes later.
    wait_for(lambda: sum(map(len, sent_messages(namesrv, expected).values())) >= report["messages"])
    assert without_repeats(sent_messages(namesrv, expected)) == expected


def without_repeats(messages: Messages) -> Messages:
    """The first of each: a replay sends again what a busy broker was slow to acknowledge."""
    return {
        queue: list({one["physical_offset"]: one for one in reversed(of_queue)}.values())[::-1]
        for queue, of_queue in messages.items()
    }
