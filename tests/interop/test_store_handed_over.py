"""One store behind our broker and the original's in turn: each serves what the other left, however that one ended."""

import asyncio
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.client import Message, Producer
from rmq_core.remoting.loop import run
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.record import StoredMessage
from tests.broker.test_kill import Ledger, load_and_kill
from tests.interop import peer
from tests.interop.test_broker_against_java import SETTINGS
from tests.interop.test_namesrv_against_java import ask, brokers, free_port, java, settings, wait_for
from tests.namesrv.test_command import running as running_namesrv
from tests.store.derived_from_log import check_keys, records
from tests.support.processes.broker_processes import PATIENT, Standalone, standalone

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("store_handed_over")]

TOPICS = ("Kinds", "T")  # of our producer, and of the load
DELAYED = "SCHEDULE_TOPIC_XXXX"
LOAD_S = 0.5
WAIT_S = 120
Place = tuple[str, int, int, int]
Shown = dict[Place, tuple[str, int]]


class HandedOver:
    """A store that changes hands."""

    def __init__(self, directory: Path, index_tags: str | None = None, settings: str = "") -> None:
        """Settings of the release that runs; ``index_tags`` if they are not to say what its Index has."""
        self._directory = directory
        self._root = directory / "store"
        self._conf = directory / "broker.conf"
        more = {"indexTags": index_tags or peer.index_tags(), **peer.recover_all()}
        lines = "".join(f"{k}={v}\n" for k, v in more.items())
        self._conf.write_text(f"{SETTINGS}{settings}brokerIP1=127.0.0.1\n{lines}")
        self._left = b""
        self._expected: Shown = {}

    @property
    def config(self) -> StoreConfig:
        return load_config(str(self._root), self._conf, environ={})[1]

    @contextmanager
    def ours(self) -> Iterator[Standalone]:
        """Our broker on the store."""
        with standalone(self._root, "-c", str(self._conf), log=self._directory / "log") as running:
            yield running

    @contextmanager
    def javas(self) -> Iterator[Standalone]:
        """The original's, behind a name server of ours."""
        fresh, port = self._directory / f"namesrv-{free_port()}", free_port()
        with (self._directory / "java.log").open("ab") as log, running_namesrv("-c", settings(fresh)) as (_, namesrv):
            conf = fresh / "broker.conf"
            places = f"namesrvAddr={namesrv}\nlistenPort={port}\nhaListenPort={free_port()}\n"
            conf.write_text(self._conf.read_text() + PATIENT + places)
            with java(log, "broker", str(self._root), str(conf)) as process:
                wait_for(lambda: brokers(namesrv) == {"ours"})
                topic = "Kinds" if self._left else "TBW102"
                wait_for(lambda: ask(namesrv, 105, {"topic": topic}).code == 0)
                yield Standalone(process, namesrv, f"127.0.0.1:{port}", self._directory / "java.log")

    def _messages(self) -> list[StoredMessage]:
        return records(self.config)

    def _image(self) -> bytes:
        """The log up to the end of its last record."""
        last = self._messages()[-1]
        files = sorted(Path(self.config.commitlog_path).iterdir())
        return b"".join(file.read_bytes() for file in files)[: last.physical_offset + last.size]

    def is_left(self, ledger: Ledger | None = None) -> None:
        """Remember what a broker has left, which has all that it has acknowledged."""
        self._left, self._expected = self._image(), shown(self._messages())
        if ledger is not None:
            places = {
                (queue_id, offset): crc
                for (topic, queue_id, offset, _), (_, crc) in self._expected.items()
                if topic == "T"
            }
            for place, body in ledger.acknowledged.items():
                assert places[place] == zlib.crc32(body)

    def check_served(self, running: Standalone) -> None:
        """The official consumer is given all that was left; what was delayed comes, and no byte of the log is lost."""
        left = self._messages()
        delivered = sum("REAL_TOPIC" in message.properties and message.topic != DELAYED for message in left)
        waiting = sum(message.topic == DELAYED for message in left) - delivered
        count = len(self._expected) + max(waiting, 0)
        output = peer.run(
            "consume", running.namesrv, ",".join(TOPICS), str(count), str(WAIT_S), java_options=peer.QUICK_START
        )
        given = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        got = {
            (one["topic"], one["queue_id"], one["queue_offset"], one["physical_offset"]): (
                one["uniq_key"],
                one["body_crc"],
            )
            for one in given
        }
        assert len(got) >= count
        assert self._expected.items() <= got.items() <= shown(self._messages()).items()
        assert self._image().startswith(self._left)


def shown(messages: list[StoredMessage]) -> Shown:
    """What a consumer is given of them: unique key and checksum by place."""
    return {
        (one.topic, one.queue_id, one.queue_offset, one.physical_offset): (one.uniq_key or "", zlib.crc32(one.body))
        for one in messages
        if one.topic in TOPICS
    }


def send_kinds(running: Standalone) -> None:
    """Messages of some kinds; the last ones are delayed by five seconds."""

    async def main() -> None:
        async with Producer(running.namesrv, "kinds") as producer:
            for number in range(60):
                body = b"%d" % number * (1 + number * 20)
                await producer.send(Message("Kinds", body, tags=f"Tag{number % 3}", keys=[f"k{number}", "all"]))
            await producer.send_batch([Message("Kinds", b"inner %d" % number, keys="all") for number in range(10)])
            for number in range(3):
                await producer.send(Message("Kinds", b"late %d" % number, delay_level=5))

    run(main())


@pytest.mark.long
def test_a_store_of_the_newest_release_comes_here_and_goes_back(tmp_path: Path) -> None:
    """Nothing is told of it: that its Index has TAGS is seen."""
    with peer.running(peer.NEWEST):
        store, ledger = HandedOver(tmp_path, index_tags="auto"), Ledger()
        with store.javas() as running:
            send_kinds(running)
            asyncio.run(load_and_kill(running, LOAD_S, ledger))
        store.is_left(ledger)
        with store.ours() as running:
            store.check_served(running)
            send_kinds(running)
            assert running.stop() == 0
        store.is_left(ledger)
        with store.javas() as running:
            store.check_served(running)
    check_keys(replace(store.config, index_tags="yes"))
    assert not re.search(" (?:WARNING|ERROR) ", (tmp_path / "log").read_text())


@pytest.mark.long
def test_each_broker_serves_what_the_other_left(tmp_path: Path) -> None:
    peer.build()
    store, ledger = HandedOver(tmp_path), Ledger()
    with store.ours() as running:
        send_kinds(running)
        assert running.stop() == 0
    store.is_left()
    with store.javas() as running:
        store.check_served(running)
        asyncio.run(load_and_kill(running, LOAD_S, ledger))
    store.is_left(ledger)
    with store.ours() as running:
        store.check_served(running)
        asyncio.run(load_and_kill(running, LOAD_S, ledger))
    store.is_left(ledger)
    with store.javas() as running:
        store.check_served(running)
        send_kinds(running)
        running.stop()
        assert not (tmp_path / "store" / "abort").exists(), "it has ended in order"
    store.is_left(ledger)
    with store.ours() as running:
        store.check_served(running)
        assert running.stop() == 0
    check_keys(store.config)
    assert not re.search(" (?:WARNING|ERROR) ", (tmp_path / "log").read_text())
