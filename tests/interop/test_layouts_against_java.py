"""Light and batch queues: the official client at our broker, and one store behind ours and the original's in turn."""

import json
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.batch_consumequeue import inner_messages, is_inner_batch
from tests.interop import peer
from tests.interop.test_store_handed_over import HandedOver
from tests.store.derived_from_log import check_derived, records
from tests.support.oracles.light_queues import light_places
from tests.support.processes.broker_processes import Standalone

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("layouts_against_java")]

TOPIC, BATCHES = "Kinds", "Batches"  # the first one is what ``HandedOver`` waits for
SETTINGS = (
    "enableLmq=true\nenableMultiDispatch=true\nmapperFileSizeBatchConsumeQueue=920\n"
    "maxTransferCountOnMessageInMemory=1024\nmaxTransferCountOnMessageInDisk=1024\n"
)


def layouts_peer(command: str, running: Standalone, *arguments: str) -> list[dict[str, Any]]:
    """Run a command of the official client; what it tells."""
    output = peer.run("variants", command, running.namesrv, *arguments, java_options=peer.QUICK_START)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def make_topic(running: Standalone, topic: str) -> None:
    done = peer.command(
        "updateTopic",
        "-n",
        running.namesrv,
        "-b",
        running.broker,
        "-t",
        topic,
        "-r",
        "4",
        "-w",
        "4",
        "-a",
        "+queue.type=BatchCQ",
    )
    assert "success" in done, done[-2000:]


class Kept:
    """What clients were told of their messages, and what the log has."""

    def __init__(self, store: HandedOver) -> None:
        self._store = store
        self._told: list[dict[str, Any]] = []

    def send(self, running: Standalone, seed: int) -> None:
        self._told += layouts_peer("send", running, TOPIC, BATCHES, str(seed), "40")

    def check(self, running: Standalone) -> None:
        """The official client is given each message at its places, and all that were acknowledged are there."""
        config = self._store.config
        light, plain, batches = expected(config)
        told = {(one["topic"], one["queue_id"], one["queue_offset"], one["count"]) for one in self._told}
        assert told <= plain.keys() | batches.keys()
        offset = 5
        got: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for message in layouts_peer("pull", running, TOPIC, BATCHES, str(offset)):
            queue = message["queue"], message["queue_id"]
            got.setdefault(queue, []).append((message["queue_offset"], message["body"]))
        for name, bodies in light.items():
            assert [body for _, body in got.get((name, 0), [])] == bodies
        for queue_id in range(4):
            wanted = [(at, body) for (_, there, at, _), body in plain.items() if there == queue_id]
            assert got.get((TOPIC, queue_id), []) == wanted
            inner = [
                (at + number, body)
                for (_, there, at, count), bodies in batches.items()
                if there == queue_id and at + count > offset
                for number, body in enumerate(bodies)
            ]
            assert got.get((BATCHES, queue_id), []) == inner


Places = dict[tuple[str, int, int, int], Any]


def expected(config: StoreConfig) -> tuple[dict[str, list[str]], Places, Places]:
    """What the log has: bodies of each light queue in order, of plain messages and of batches by place and count."""
    light: dict[str, list[tuple[int, str]]] = {}
    plain: Places = {}
    batches: Places = {}
    for message in records(config):
        if message.topic == TOPIC:
            plain[TOPIC, message.queue_id, message.queue_offset, 1] = message.body.decode()
            for name, _, place in light_places(message):
                light.setdefault(name, []).append((place, message.body.decode()))
        elif message.topic == BATCHES:
            is_batch = is_inner_batch(message)
            bodies = [one.body.decode() for one in inner_messages(message)] if is_batch else [message.body.decode()]
            batches[BATCHES, message.queue_id, message.queue_offset, len(bodies)] = bodies
    for places in light.values():
        assert [place for place, _ in places] == list(range(len(places)))
    return {name: [body for _, body in places] for name, places in light.items()}, plain, batches


@pytest.mark.long
def test_each_broker_goes_on_with_the_other_s_light_and_batch_queues(tmp_path: Path) -> None:
    peer.build()
    store = HandedOver(tmp_path, settings=SETTINGS)
    kept = Kept(store)
    with store.ours() as running:
        for topic in (BATCHES, "Accepted"):
            make_topic(running, topic)
        accepted = peer.run("variants", "inner-batch", running.namesrv, "Accepted", java_options=peer.QUICK_START)
        assert "inner-batch: as asserted" in accepted
        kept.send(running, 1)
        kept.check(running)
        assert running.stop() == 0
    for seed, is_killed in ((2, True), (4, False)):
        with store.javas() as running:
            kept.check(running)
            kept.send(running, seed)
            kept.check(running)
            if is_killed:
                running.process.kill()
            else:
                running.stop()
        with store.ours() as running:
            kept.check(running)
            kept.send(running, seed + 1)
            kept.check(running)
            if is_killed:
                running.process.kill()
            else:
                assert running.stop() == 0
    check_derived(store.config, index=False, batch_topics=(BATCHES, "Accepted"))
    assert not list((tmp_path / "store" / "consumequeue").glob("[BA]*"))
