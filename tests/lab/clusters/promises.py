"""What answers to sends have promised: kept, forced, and on so many slaves; and what brokers have of it."""

from collections import Counter
from collections.abc import Callable, Sequence

from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore
from tests.lab.clusters.nodes import BrokerNode
from tests.lab.clusters.two_logs import log_bytes
from tests.lab.rounds import Round

_BEFORE = 500  # bytes before an acknowledged place that are looked at
Promise = Callable[[int, bytes], None]


class Promises:
    """What a master and its slaves have promised.

    Attributes:
        is_certain: the master has lost nothing that a consumer may have seen.
        broken: promises that were broken where nothing can be demanded.
    """

    def __init__(
        self, one: Round, master: BrokerNode, slaves: Sequence[BrokerNode], copies: int, *, waits: bool
    ) -> None:
        """Prepare.

        Args:
            one: the round.
            master: which answers.
            slaves: its slaves.
            copies: how many of them are enough for it.
            waits: a message is on so many when it is answered.
        """
        self.is_certain = True
        self.broken: list[str] = []
        self._one = one
        self._master, self._slaves, self._copies, self._waits = master, slaves, copies, waits
        self._kept: dict[int, bytes] = {}  # by physical offset
        self._holders: dict[int, dict[BrokerNode, bool]] = {}  # slaves that may have it; whether it was seen there
        self._lives: Counter[str] = Counter()  # of a host; one more when what it has acknowledged may be lost
        self._unsure: set[BrokerNode] = set()  # who may have lost, with its power, what was never forced
        self._had: dict[BrokerNode, int] = {}  # ends of their logs then: a master may hear of what they had later
        master.on_start(lambda broker: broker.state.replication.master.on_acknowledged(self._acknowledged))

    def promise(self) -> Promise:
        """What notes the answer to a message that leaves now: with the message's physical offset and its body."""
        lives = dict(self._lives)

        def note(offset: int, body: bytes) -> None:
            if lives == self._lives:  # else it may have come late
                self._note(offset, body)

        return note

    def _note(self, offset: int, body: bytes) -> None:
        """Note what a successful answer promises, and look at it at once; it may come from a master that stops."""
        one = self._one
        self._kept[offset] = body
        if self._master.broker is not None:
            store = self._master.store
            one.demand(_has(store, offset, body), f"acknowledged at {offset}, and not there")
            is_forced = not _forces(self._master) or offset < store.flushed_offset
            one.demand(is_forced, f"acknowledged at {offset}, and forced to {store.flushed_offset}")
        if self._waits:
            self._holders[offset] = {
                slave: slave.broker is not None
                for slave in self._slaves
                if slave not in self._unsure and (slave.broker is None or _holds(slave, offset, body))
            }
            self._judge_copies(offset)

    def _judge_copies(self, offset: int) -> None:
        hosts = [slave.host for slave in self._holders[offset]]
        self._one.demand(len(hosts) >= self._copies, f"acknowledged as on {self._copies} slaves: {offset}, on {hosts}")

    def may_lose(self, node: BrokerNode) -> None:
        """A broker has lost its power, or its disk fails: what it has not forced may be gone."""
        if node is self._master and not _forces(node):
            self.is_certain = False

    def loses_power(self, node: BrokerNode) -> None:
        """A broker that is up is about to lose its power."""
        self.may_lose(node)
        if not _forces(node):
            self._unsure.add(node)
            self._had[node] = node.store.max_physical_offset
            self._lives[node.host] += 1

    def wiped(self, slave: BrokerNode) -> None:
        """The store of a slave was deleted."""
        self._lives[slave.host] += 1
        self._holders = {offset: holders for offset, holders in self._holders.items() if slave not in holders}

    def started(self, node: BrokerNode) -> None:
        """A broker has started: it has what it has acknowledged, unless it has lost what was never forced."""
        is_sure = node not in self._unsure
        self._unsure.discard(node)
        if node is self._master:
            missing = [offset for offset, body in self._kept.items() if not _has(node.store, offset, body)]
            self._one.demand(not (is_sure and missing), f"{node.host} has lost what it has acknowledged: {missing}")
            for offset in missing:
                del self._kept[offset]
                self._holders.pop(offset, None)
        else:
            self._judge_slave(node, is_sure=is_sure)

    def judge_slaves(self) -> None:
        """All slaves that are up have what they have acknowledged."""
        for slave in self._slaves:
            if slave.broker is not None:
                self._judge_slave(slave, is_sure=True)

    def _judge_slave(self, slave: BrokerNode, *, is_sure: bool) -> None:
        held = [offset for offset, holders in self._holders.items() if slave in holders]
        missing = [offset for offset in held if not _has(slave.store, offset, self._kept[offset])]
        if not is_sure:
            for offset in missing:
                del self._holders[offset]
            return
        seen = [offset for offset in missing if self._holders[offset][slave]]
        self._one.demand(not seen, f"{slave.host} has lost what it has acknowledged: {seen}")
        for offset in held:
            if offset in missing:
                del self._holders[offset][slave]
                self._judge_copies(offset)
            elif _holds(slave, offset, self._kept[offset]):
                self._holders[offset][slave] = True

    def _acknowledged(self, offset: int) -> None:
        """Note what so many slaves have acknowledged: its last bytes are there, and forced where they say so."""
        if self._master.broker is None:
            return  # it has gone in order since
        count = sum(
            slave.broker is None or offset <= self._had.get(slave, 0) or self._is_there(slave.store, offset)
            for slave in self._slaves
        )
        if count < self._copies:
            ends = [(slave.host, slave.broker and slave.store.max_physical_offset) for slave in self._slaves]
            self.broken.append(f"slaves have acknowledged {offset}, and have {ends}")

    def _is_there(self, theirs: MessageStore, offset: int) -> bool:
        ours = self._master.store
        is_forced = theirs.config.flush_disk_type is FlushDiskType.SYNC
        if (theirs.flushed_offset if is_forced else theirs.max_physical_offset) < offset:
            return False
        begin = max(ours.min_physical_offset, theirs.min_physical_offset, offset - _BEFORE)
        return begin >= offset or log_bytes(theirs, begin, offset) == log_bytes(ours, begin, offset)


def _forces(node: BrokerNode) -> bool:
    return node.config.flush_disk_type is FlushDiskType.SYNC


def _holds(slave: BrokerNode, offset: int, body: bytes) -> bool:
    """Whether a slave that is up may have acknowledged a message: it has it, and has forced it where it does so."""
    store = slave.store
    record = store.record(offset)
    is_forced = not _forces(slave) or record is None or offset + len(record) <= store.flushed_offset
    return _has(store, offset, body) and is_forced


def _has(store: MessageStore, offset: int, body: bytes) -> bool:
    """Whether a store has a message, or had it and has deleted it since as too old."""
    if offset < store.min_physical_offset:
        return True
    record = store.record(offset)
    return record is not None and body in bytes(record)
