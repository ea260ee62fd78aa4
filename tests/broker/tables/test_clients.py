"""Producer groups are bounded, and found by their connection."""

import pytest

from rmq_core.broker.tables import clients
from rmq_core.broker.tables.clients import Client, Peer, Producers
from rmq_core.remoting.errors import ResponseError


class Wire:
    """Counts what is kept for a connection."""

    def __init__(self) -> None:
        self.parked_bytes = 0

    def reserve_parked(self, size: int) -> None:
        self.parked_bytes += size

    def release_parked(self, size: int) -> None:
        self.parked_bytes -= size


def client(wire: Wire, client_id: str = "c") -> Client:
    peer: Peer = wire  # type: ignore[assignment] # the table counts bytes of it, and no more
    return Client(peer, client_id, "JAVA", 479, 0)


def test_a_connection_has_so_many_producer_groups_and_pays_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_PRODUCER_GROUPS", 3)
    producers, wire, other = Producers(), Wire(), Wire()
    for _ in range(2):
        for name in ("a", "b", "c"):
            producers.register(name, client(wire))
    parked_bytes = wire.parked_bytes
    with pytest.raises(ResponseError, match="3 producer groups already"):
        producers.register("d", client(wire))
    with pytest.raises(ResponseError, match="more than 255 characters"):
        producers.register("x" * 256, client(other))
    producers.register("d", client(other))
    assert (set(producers.groups), wire.parked_bytes) == (set("abcd"), parked_bytes)
    for name in producers.names_of(client(wire).connection):
        producers.unregister(name, client(wire).connection)
    assert (set(producers.groups), wire.parked_bytes, producers._group_names.keys()) == ({"d"}, 0, {other})


def test_members_are_known_by_client_id_until_they_leave() -> None:
    producers, wire, other = Producers(), Wire(), Wire()
    for who in (client(wire, "a"), client(other, "a")):
        producers.register("g", who)
    assert [one.connection for one in producers.clients("a")] == [wire, other]
    producers.register("g", client(wire, "b"))
    producers.register("h", client(wire, "a"))
    assert [len(producers.clients(one)) for one in "ab"] == [2, 1]
    for name in ("g", "h", "h", "none"):
        producers.unregister(name, client(wire).connection)
    producers.unregister("g", client(other).connection)
    assert (producers.groups, producers._clients_by_id, producers._group_names) == ({}, {}, {})
    assert (wire.parked_bytes, other.parked_bytes) == (0, 0)
