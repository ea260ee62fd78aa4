"""Allocation strategies give what Java's give: the expected shares were printed by its own classes."""

import pytest

from rmq_core.client import MessageQueue
from rmq_core.client.allocation import (
    Allocation,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    averagely,
    by_circle,
)
from rmq_formats.errors import OptionError

CLIENTS = ["192.0.2.1@1", "192.0.2.1@2", "192.0.2.2@1"]
IN_ROOMS = ["r1-a", "r1-b", "r2-a"]


def queues(text: str) -> list[MessageQueue]:
    """``a:2`` are the first two queues of the broker a."""
    parts = [part.rsplit(":", 1) for part in text.split()]
    return sorted(
        MessageQueue(topic="T", broker_name=name, queue_id=n) for name, count in parts for n in range(int(count))
    )


def room(text: str) -> str:
    return text.split("-", maxsplit=1)[0]


def nearby(inner: Allocation) -> MachineRoomNearby:
    return MachineRoomNearby(inner, lambda queue: room(queue.broker_name), room)


@pytest.mark.parametrize(
    ("strategy", "all_queues", "clients", "expected"),
    [
        (averagely, "a:4 b:4", CLIENTS, ["a0 a1 a2", "a3 b0 b1", "b2 b3"]),
        (averagely, "a:2", CLIENTS, ["a0", "a1", ""]),
        (by_circle, "a:4 b:4", CLIENTS, ["a0 a3 b2", "a1 b0 b3", "a2 b1"]),
        (by_circle, "a:2", CLIENTS, ["a0", "a1", ""]),
        (ConsistentHash(), "a:8 b:8", CLIENTS, ["a1 b7", "a0 a2 a4 a5 a7 b0 b1 b2 b3 b5", "a3 a6 b4 b6"]),
        (ConsistentHash(3), "a:8 b:8", CLIENTS, ["", "a0 a3 a6 b2 b4 b7", "a1 a2 a4 a5 a7 b0 b1 b3 b5 b6"]),
        (ByConfig(queues("z:2")), "a:4 b:4", CLIENTS, ["z0 z1"] * 3),
        (
            ByMachineRoom({"r1", "r2"}),
            "r1@a:4 r2@b:4 r3@c:4 plain:2 r1@:2 @r1:2",
            CLIENTS,
            ["r1@a0 r1@a1 r2@b2", "r1@a2 r1@a3 r2@b3", "r2@b0 r2@b1"],
        ),
        (
            nearby(averagely),
            "r1-x:5 r2-x:4 r3-x:4 r4-x:2",
            IN_ROOMS,
            ["r1-x0 r1-x1 r1-x2 r3-x0 r3-x1 r4-x0", "r1-x3 r1-x4 r3-x2 r4-x1", "r2-x0 r2-x1 r2-x2 r2-x3 r3-x3"],
        ),
        (
            nearby(ConsistentHash()),
            "r1-x:5 r2-x:4 r3-x:4 r4-x:2",
            IN_ROOMS,
            ["r1-x2 r4-x0", "r1-x0 r1-x1 r1-x3 r1-x4 r3-x1 r3-x3", "r2-x0 r2-x1 r2-x2 r2-x3 r3-x0 r3-x2 r4-x1"],
        ),
    ],
)
def test_shares_are_those_of_java(
    strategy: Allocation, all_queues: str, clients: list[str], expected: list[str]
) -> None:
    shares = [strategy(client, queues(all_queues), clients) for client in clients]
    assert [" ".join(f"{queue.broker_name}{queue.queue_id}" for queue in share) for share in shares] == expected


@pytest.mark.parametrize("strategy", [averagely, by_circle, ConsistentHash(), ByMachineRoom({"a"}), nearby(averagely)])
def test_a_client_that_brokers_do_not_know_gets_nothing(strategy: Allocation) -> None:
    assert strategy("stranger", queues("a:4"), CLIENTS) == []


@pytest.mark.parametrize("strategy", [averagely, by_circle, ConsistentHash()])
@pytest.mark.parametrize("count", range(1, 12))
def test_each_queue_has_one_owner(strategy: Allocation, count: int) -> None:
    everything = queues(f"a:{count} b:{count}")
    shares = [queue for client in CLIENTS for queue in strategy(client, everything, CLIENTS)]
    assert sorted(shares) == everything


@pytest.mark.parametrize(("queue_count", "client_count", "sizes"), [(5, 2, [3, 2]), (10, 20, [1] * 10 + [0] * 10)])
def test_shares_differ_by_one_queue_and_members_beyond_the_queues_have_none(
    queue_count: int, client_count: int, sizes: list[int]
) -> None:
    clients = [f"192.0.2.1@{number:02}" for number in range(client_count)]
    assert [len(averagely(client, queues(f"a:{queue_count}"), clients)) for client in clients] == sizes


def test_a_queue_without_a_room_is_refused() -> None:
    with pytest.raises(OptionError, match="no machine room"):
        MachineRoomNearby(averagely, lambda _: "", room)("r1-a", queues("x:1"), IN_ROOMS)


def test_a_ring_needs_places() -> None:
    with pytest.raises(OptionError, match="virtual_nodes"):
        ConsistentHash(0)
