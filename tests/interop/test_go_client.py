"""The official Go client at our name server and broker."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client import Admin
from rmq_core.remoting.loop import run
from tests.interop import go_peer
from tests.support.certificates import Authority
from tests.support.processes.broker_processes import configured

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("go_client"),
    pytest.mark.skipif(not go_peer.IS_THERE, reason="needs Go and its module proxy"),
]

COUNT = 12
KINDS = ("sync", "ordered", "batch", "oneway", "async")
SENT = Counter([f"{kind} {number}" for kind in KINDS for number in range(COUNT)] + ["delayed 0"])
TOPIC = "GoTopic"
WAIT_S = 90  # no test waits that long where all is well

Told = list[dict[str, Any]]


@dataclass(frozen=True)
class Produced:
    """What the Go producer has sent.

    Attributes:
        namesrv: the name server's address.
        told: an answer a line; a batch has one, of its first message.
    """

    namesrv: str
    told: Told

    def push(self, group: str, tags: str, count: int, kind: str = "concurrent", topic: str = TOPIC) -> Told:
        """What a push consumer is called with."""
        return go_peer.run(self.namesrv, "push", group, topic, tags, count, WAIT_S, kind)


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Produced]:
    directory = tmp_path_factory.mktemp("go")
    go_peer.build(go_peer.REMOTING)
    with configured(directory, "") as running:
        yield Produced(running.namesrv, go_peer.run(running.namesrv, "produce", TOPIC, COUNT))


async def make_topic(namesrv: str, topic: str) -> None:
    """Have a topic whose route is known."""
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
        while topic not in await admin.topics():
            await asyncio.sleep(0.1)


def bodies(told: Told) -> Counter[str]:
    return Counter(one["body"] for one in told)


def of_kinds(*kinds: str) -> Counter[str]:
    return Counter({body: 1 for body in SENT if body.partition(" ")[0] in kinds})


def test_a_pull_consumer_gets_all_that_was_sent_in_every_way(produced: Produced) -> None:
    told = go_peer.run(produced.namesrv, "pull", "go_pull", TOPIC, SENT.total(), WAIT_S)
    assert bodies(told) == SENT
    assert all(one["tags"] == one["body"].partition(" ")[0] for one in told)
    places = {one["body"]: (one["queue_id"], one["queue_offset"]) for one in told}
    answered = {one["body"]: (one["queue_id"], one["queue_offset"]) for one in produced.told}
    del answered["delayed 0"], places["delayed 0"]  # its answer tells its place while it waits
    assert {body: places[body] for body in answered} == answered
    ids = {one["body"]: one["msg_id"] for one in told}
    assert {one["body"]: one["msg_id"] for one in produced.told if "msg_id" in one}.items() <= ids.items()


def test_a_push_consumer_gets_the_tags_that_it_asks_for(produced: Produced) -> None:
    told = produced.push("go_push", "sync || delayed", COUNT + 1)
    assert bodies(told) == of_kinds("sync", "delayed")
    assert {one["body"]: one.get("keys") for one in told if one["tags"] == "sync"} == {
        f"sync {number}": f"key-{number}" for number in range(COUNT)
    }


def test_a_group_goes_on_where_it_was(produced: Produced) -> None:
    for _ in range(2):
        go_peer.run(produced.namesrv, "produce", "GoAgain", 1)
        assert bodies(produced.push("go_again", "async", 1, topic="GoAgain")) == Counter(["async 0"])


def test_messages_of_one_key_come_in_order(produced: Produced) -> None:
    told = produced.push("go_orderly", "ordered", COUNT, "orderly")
    assert bodies(told) == of_kinds("ordered")
    by_key: dict[int, list[int]] = defaultdict(list)
    for one in told:
        number = int(one["body"].partition(" ")[2])
        by_key[number % 3].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_what_a_consumer_sends_back_comes_again(produced: Produced) -> None:
    # A group's first consumer learns its retry topic's route by a race with its own heartbeat, and else after 40 s:
    # its routes are renewed every 30 s, and its queues shared every 20 s. At Java's broker it takes these 40 s.
    # Here the topic is there before the group, as that of a group which others are members of.
    run(make_topic(produced.namesrv, "%RETRY%go_later"))
    told = produced.push("go_later", "batch", 2 * COUNT, "later")
    assert Counter(one["reconsume_times"] for one in told) == {0: COUNT, 1: COUNT}
    assert bodies(told) == of_kinds("batch") + of_kinds("batch")


@pytest.mark.long
def test_it_comes_in_where_only_tls_is_spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = Authority(tmp_path).sign("broker", "127.0.0.1")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.server.certPath={signed.cert}\ntls.server.keyPath={signed.key}\ntls.client.authServer=false\n"
    )
    monkeypatch.setenv("TLS", "true")
    with configured(tmp_path, f"tls.server.mode=enforcing\ntls.config.file={file}\n") as running:
        go_peer.run(running.namesrv, "produce", TOPIC, 2)
        told = go_peer.run(running.namesrv, "pull", "go_pull", TOPIC, 2 * len(KINDS) + 1, WAIT_S)
    sent = [f"{kind} {number}" for kind in KINDS for number in range(2)]
    assert bodies(told) == Counter([*sent, "delayed 0"])
