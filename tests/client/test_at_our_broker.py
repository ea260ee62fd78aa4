"""Our producer and consumers at our own broker."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_core.client import (
    Message,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    SendFailedError,
    StartPosition,
)
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.loop import run
from tests.client.consumer_scenarios import *  # noqa: F403 # the tests themselves
from tests.client.pull_scenarios import *  # noqa: F403
from tests.client.scenarios import *  # noqa: F403
from tests.client.scenarios import FIRST, SETTINGS, Seen, fresh, gather_messages, known, send_all
from tests.support.processes import warm_processes

pytestmark = [pytest.mark.xdist_group("client_at_our_broker")]
STANDALONE = "from rmq_cli.main import main; main()"
ADDRESSES = re.compile(r"name server ([0-9.]+:[0-9]+), broker ([0-9.]+:[0-9]+)")
ANY_PORT = "127.0.0.1:0"


@contextmanager
def standalone(
    directory: Path, namesrv: str = ANY_PORT, broker: str = ANY_PORT
) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """``rmq standalone`` with its addresses; ended at the end."""
    settings = directory / "broker.conf"
    settings.write_text(SETTINGS + "mappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\n")
    with (directory / "log").open("ab") as log:
        process = warm_processes.Popen(
            [
                sys.executable,
                "-c",
                STANDALONE,
                "standalone",
                "--store",
                str(directory / "store"),
                "-c",
                str(settings),
                "--listen",
                namesrv,
                "--broker-listen",
                broker,
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = ADDRESSES.search(line)
            assert found, line + (directory / "log").read_text()
            yield process, found[1], found[2]
            process.terminate()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server's address of ``rmq standalone``."""
    with standalone(tmp_path_factory.mktemp("client")) as (_, address, _):
        yield address


def test_a_broker_that_starts_anew_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        topic, group, got = fresh("Again"), fresh("group"), Seen()
        with standalone(tmp_path) as (process, address, broker):
            await send_all(address, topic, [b"before"])
            consumer = PushConsumer(address, group, got, FIRST)
            consumer.subscribe(topic)
            async with consumer, Producer(address, "senders") as producer:
                await producer.send(Message(topic, b"one"))
                await got.until(2)
                process.kill()
                process.wait()
                with pytest.raises((SendFailedError, TransportError)):
                    await producer.send(Message(topic, b"lost"), timeout_s=0.5)
                with standalone(tmp_path, address, broker):
                    await known(address, topic)
                    await producer.send(Message(topic, b"two"), timeout_s=10)
                    # Within some seconds: it does not wait for the next heartbeat, which is 30 s away.
                    assert b"two" in await until_body(got, b"two")

    run(main())


def test_polls_go_on_while_a_broker_starts_anew(tmp_path: Path) -> None:
    async def main() -> None:
        topic = fresh("Polled")
        with standalone(tmp_path) as (process, address, broker):
            await send_all(address, topic, [b"before"])
            consumer = PullConsumer(address, fresh("group"), PullOptions(start=StartPosition.FIRST))
            consumer.subscribe(topic)
            async with consumer:
                assert [message.body for message in await gather_messages(consumer, 1)] == [b"before"]
                process.terminate()
                process.wait()
                assert await consumer.poll(2) == []
                with standalone(tmp_path, address, broker):
                    await known(address, topic)
                    await send_all(address, topic, [b"after"])
                    assert [message.body for message in await gather_messages(consumer, 1)] == [b"after"]

    run(main())


async def until_body(seen: Seen, body: bytes, seconds: float = 20) -> list[bytes]:
    async with asyncio.timeout(seconds):
        while body not in seen.bodies:
            await asyncio.sleep(0.05)
    return seen.bodies
