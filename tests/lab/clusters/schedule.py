"""The part ``clusters``: a name server, a master, its slave and a client, in virtual time over a network in memory.

Connections are cut, held up and half-open; disks are full, hang, fail and lose their power; brokers are killed and
rejoin; topics are deleted and made again; clocks jump. All of it is told by the seed.
"""

import asyncio
import os
import random
import traceback
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

from rmq_core.broker.config import BrokerConfig
from rmq_core.ha.slave import MasterLink
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import FlushDiskType
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.properties import encode_properties
from tests.lab.clusters.nodes import PORT, BrokerNode
from tests.lab.clusters.two_logs import is_beginning, kept_and_rebuilt, log_bytes, since, where_they_part
from tests.lab.rounds import Round
from tests.lab.virtual.loop import VirtualLoop
from tests.lab.virtual.network import End, Machine
from tests.store.small_stores import NOW_MS, config_of

_STEPS = 50
_TOPICS = ("T", "Other")
_QUEUES = 3
_MASTER, _SLAVE, _NAMESRV, _CLIENT = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"
_NAMESRV_PORT = 9876
_PATIENCE_S = 600  # of virtual time: a slave whose store refuses tries again after thirty seconds
_JUMPS_MS = (0, 7_200_000, -7_200_000, 40 * 86_400_000)
_HEARS_S = 10  # in which a slave learns of a master that was away, at its next registration, and of its topics
_BEFORE = 500  # bytes before an acknowledged place that are looked at


def play(one: Round) -> None:
    """Run one schedule."""
    state = random.getstate()
    random.seed(one.seed)  # of the project's own choices, of a queue for instance
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(one.seed)) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            runner.run(Schedule(one, loop).play())
    finally:
        random.setstate(state)


class Schedule:
    """One schedule over one cluster."""

    def __init__(self, one: Round, loop: VirtualLoop) -> None:
        dice = one.dice
        loop.set_exception_handler(self._failed)
        self._one, self._loop, self._dice = one, loop, dice
        kinds = (FlushDiskType.ASYNC, FlushDiskType.SYNC)
        self._flush = dice.choice(kinds), dice.choice(kinds)
        self._waits_for_slave = dice.random() < 0.5
        self._numbers = count()
        self._client_machine = Machine(_CLIENT)
        self._client = RemotingClient()
        names = NamesrvConfig(
            bind_address=_NAMESRV, listen_port=_NAMESRV_PORT, kv_config_path=str(one.work / "kv.json")
        )
        self._namesrv = NameServer(names, lambda: NOW_MS + int(loop.now_s * 1000))
        self._sends: set[asyncio.Task[None]] = set()
        self._kept: dict[int, bytes] = {}  # what the master has promised to keep, by physical offset
        self._on_slave: dict[int, bytes] = {}  # what is promised to be on the slave, by physical offset
        self._lives: Counter[str] = Counter()  # of a host; one more when what it has acknowledged may be lost
        self._unsure: set[BrokerNode] = set()  # who may have lost, with its power, what was never forced
        self._cleaned = {_MASTER: 0, _SLAVE: 0}  # physical offsets before which all is deleted, or may be
        self._broken: list[str] = []
        role = "SYNC_MASTER" if self._waits_for_slave else "ASYNC_MASTER"
        self._master = self._node(_MASTER, role, 0)
        self._slave = self._node(_SLAVE, "SLAVE", 1)
        self._master.on_start(lambda broker: broker.state.replication.master.on_acknowledged(self._acknowledged))

    def _node(self, host: str, role: str, broker_id: int) -> BrokerNode:
        config = BrokerConfig(
            bind_address=host, listen_port=PORT, broker_ip1=host, broker_role=role, broker_id=broker_id,
            namesrv_addr=f"{_NAMESRV}:{_NAMESRV_PORT}", in_sync_replicas=2, slave_timeout_ms=1000,
            slave_sync_interval_ms=2000, register_name_server_period_ms=5000, ha_transfer_batch_size=3000,
            timer_wheel_enable=False,
        )  # fmt: skip
        store = config_of(
            self._one.work, flush_disk_type=self._flush[broker_id], slave=config.is_slave, delete_batch=2,
            preallocate=self._dice.random() < 0.5,
        )  # fmt: skip
        return BrokerNode(self._loop, self._one.work, config, store, self._one.seed)

    async def play(self) -> None:
        """Take all steps, and look at the promises."""
        one, dice = self._one, self._dice
        one.step(f"master {self._flush[0].name}, slave {self._flush[1].name}, waits for it: {self._waits_for_slave}")
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (24, self._send), (8, self._settle), (4, self._cut), (4, self._part), (4, self._heal), (3, self._halve),
            (6, self._lose_power), (4, self._kill), (4, self._restart), (4, self._delete_topic), (2, self._clean),
            (3, self._hang), (2, self._fail), (3, self._fill), (2, self._jump), (4, self._wait),
        ]  # fmt: skip
        weights, actions = zip(*steps, strict=True)
        with Machine(_NAMESRV).owns():
            await self._namesrv.start()
        try:
            await self._start(self._master)
            await self._start(self._slave)
            for action in dice.choices(actions, weights, k=_STEPS):
                self._tell(action.__name__[1:])
                await action()
                one.case()
                await asyncio.sleep(dice.choice([0.0, 0.002, 0.05, 0.5, 3.0]))
                self._judge()
            await self._settle()
            await self._judge_queues()
        finally:
            self._loop.network.heal()
            for task in self._sends:
                task.cancel()
            await self._client.close()
            await self._slave.end()
            await self._master.end()
            await self._namesrv.close()

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Nothing that a loop runs may fail with an error that nobody has expected."""
        error = context.get("exception")
        frames = traceback.extract_tb(error.__traceback__)[-4:] if error is not None else []
        where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        self._broken.append(f"{context['message']}: {type(error).__name__}: {error} at {where}")

    @property
    def _nodes(self) -> tuple[BrokerNode, BrokerNode]:
        return self._master, self._slave

    def _tell(self, what: str) -> None:
        ends = [
            f"{node.store.max_physical_offset}, {node.store.flushed_offset} forced" if node.broker else "down"
            for node in self._nodes
        ]
        self._one.step(f"{self._loop.now_s:.6f} {what}; master {ends[0]}; slave {ends[1]}")
        for node in self._nodes:
            for fault in node.disk.faults:
                self._one.fault()
                self._one.step(f"    {node.host}: {fault}")
            node.disk.faults.clear()

    # --- a client's steps -----------------------------------------------------------------------
    async def _send(self) -> None:
        for _ in range(self._dice.randrange(1, 10)):
            body = b"%d " % next(self._numbers) + self._dice.randbytes(self._dice.choice([10, 100, 100, 2500]))
            with self._client_machine.owns():
                task = asyncio.create_task(self._put(body, self._dice.choice(_TOPICS), self._dice.randrange(_QUEUES)))
            self._sends.add(task)
            task.add_done_callback(self._sends.discard)

    async def _ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> RemotingCommand | None:
        """A request to the master and its answer; None where none comes."""
        command = request(code, {name: str(value) for name, value in fields.items()}, body)
        try:
            return await self._client.invoke(self._master.address, command)
        except RemotingError as error:
            self._one.step(f"{self._loop.now_s:.6f}     no answer: {type(error).__name__}")
            return None

    async def _put(self, body: bytes, topic: str, queue_id: int) -> bool:
        """Send a message; whether all that the answer may promise is promised."""
        properties = encode_properties({"UNIQ_KEY": f"{zlib.crc32(body):032X}", "WAIT": "true"}).decode()
        fields: dict[str, object] = {
            "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": NOW_MS, "h": 0,
            "i": properties, "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        lives = dict(self._lives)
        answer = await self._ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        if answer is None:
            return False
        self._one.step(f"{self._loop.now_s:.6f}     answered {answer.code} {answer.ext_fields.get('msgId', '')[16:]}")
        if answer.code != ResponseCode.SUCCESS:
            return False
        if lives == self._lives:  # else it may have come late
            self._promised(int(answer.ext_fields["msgId"][16:], 16), body)
        return True

    def _promised(self, offset: int, body: bytes) -> None:
        """Note what a successful answer promises, and look at it at once; it may come from a master that stops."""
        self._kept[offset] = body
        if self._master.broker is not None:
            store = self._master.store
            self._one.demand(_has(store, offset, body), f"acknowledged at {offset}, and not there")
            is_forced = self._flush[0] is FlushDiskType.ASYNC or offset < store.flushed_offset
            self._one.demand(is_forced, f"acknowledged at {offset}, and forced to {store.flushed_offset}")
        if self._waits_for_slave:
            self._on_slave[offset] = body
            self._judge_slave()

    async def _delete_topic(self) -> None:
        topic = self._dice.choice(_TOPICS)
        with self._client_machine.owns():
            task = asyncio.create_task(self._delete(topic))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _delete(self, topic: str) -> None:
        answer = await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        self._one.step(f"{self._loop.now_s:.6f}     deleted {topic}: {answer and answer.code}")

    # --- what goes wrong ------------------------------------------------------------------------
    def _pair(self) -> list[str]:
        """Two hosts."""
        return self._dice.sample([_MASTER, _SLAVE, self._dice.choice([_NAMESRV, _CLIENT])], 2)

    async def _cut(self) -> None:
        self._one.fault()
        self._loop.network.cut(*self._pair())

    async def _halve(self) -> None:
        self._one.fault()
        self._loop.network.halve(*self._pair())

    async def _part(self) -> None:
        self._one.fault()
        source, target = self._pair()
        self._loop.network.bar(source, target)
        if self._dice.random() < 0.7:
            self._loop.network.bar(target, source)

    async def _heal(self) -> None:
        self._loop.network.heal()

    async def _wait(self) -> None:
        await asyncio.sleep(self._dice.choice([1, 5, 25]))

    def _up(self) -> BrokerNode | None:
        node = self._dice.choice(self._nodes)
        return node if node.broker is not None else None

    async def _hang(self) -> None:
        if (node := self._up()) is not None:
            self._one.fault()
            node.threads.is_hung = True

    async def _fail(self) -> None:
        if (node := self._up()) is not None:
            node.disk.break_rate = self._dice.choice([0.1, 1.0])

    async def _fill(self) -> None:
        if (node := self._up()) is not None:
            node.disk.lack_rate = self._dice.choice([0.0, 0.2, 1.0])

    async def _jump(self) -> None:
        self._one.fault()
        self._dice.choice(self._nodes).skew_ms = self._dice.choice(_JUMPS_MS)

    async def _clean(self) -> None:
        if (node := self._up()) is not None and node.store.fault is None:
            for path in Path(node.store.config.commitlog_path).iterdir():
                os.utime(path, (1, 1))
            self._one.step(f"    {node.host}: {node.store.clean(node.clock_ms(), manually=True)}")
            self._cleaned[node.host] = node.store.min_physical_offset

    # --- lives of brokers -----------------------------------------------------------------------
    async def _kill(self) -> None:
        if (node := self._up()) is not None:
            self._one.fault()
            node.kill()
            await self._later(node)

    async def _lose_power(self) -> None:
        if (node := self._up()) is not None:
            self._one.fault()
            self._lose(node)
            await self._later(node)

    def _lose(self, node: BrokerNode) -> None:
        node.lose_power(self._dice.choice([1.0, 1.0, 0.5]))
        if node.config.flush_disk_type is FlushDiskType.ASYNC:
            self._unsure.add(node)
            self._lives[node.host] += 1

    async def _restart(self) -> None:
        if (node := self._up()) is not None:
            await node.stop()
            await self._later(node)

    async def _later(self, node: BrokerNode) -> None:
        """Start a broker after some time, or leave it down until all is to be well again."""
        if self._dice.random() < 0.7:
            await asyncio.sleep(self._dice.choice([0.01, 1, 10]))
            await self._start(node)

    async def _start(self, node: BrokerNode) -> None:
        if node.broker is None:
            await node.start()
            self._one.step(f"    {node.host} has started: {node.store.min_physical_offset} to "
                           f"{node.store.max_physical_offset}")  # fmt: skip
            is_sure = node not in self._unsure
            self._unsure.discard(node)
            kept = self._kept if node is self._master else self._on_slave
            missing = [offset for offset, body in kept.items() if not _has(node.store, offset, body)]
            self._one.demand(not (is_sure and missing), f"{node.host} has lost what it has acknowledged: {missing}")
            for offset in missing:
                del kept[offset]

    async def _settle(self) -> None:
        """All goes well again: the slave has all after a while, or says that its log is another; then it is wiped."""
        self._loop.network.heal()
        for node in self._nodes:
            if node.broker is not None and node.store.fault is not None:
                self._lose(node)
            node.well()
            await self._start(node)
        deadline = self._loop.now_s + _PATIENCE_S
        while not self._has_all():
            slave = self._slave.broker.state.replication.slave
            self._one.demand(self._loop.now_s < deadline, f"neither follows nor says: {slave.trouble}")
            if slave.is_apart and slave.trouble:
                self._judge()
                ours, theirs = self._master.store, self._slave.store
                is_false = ours.min_physical_offset < theirs.max_physical_offset and is_beginning(theirs, ours)
                if is_false:
                    self._one.demand(False, f"{slave.trouble}: {where_they_part(theirs, ours)}")
                self._one.step(f"    apart: {slave.trouble}")
                self._slave.wipe()
                self._lives[_SLAVE] += 1
                self._cleaned[_SLAVE] = 0
                self._on_slave.clear()
                await self._start(self._slave)
            if not self._slave.store.max_physical_offset:  # of a log that ends with a file it gets what is new
                await self._settled()
            await asyncio.sleep(0.5)
        self._judge()
        while not await self._settled():
            self._one.demand(self._loop.now_s < deadline, "all is well, and a message is not taken")
            await asyncio.sleep(0.5)

    async def _settled(self) -> bool:
        """Send one message more; whether it is taken."""
        with self._client_machine.owns():
            return await self._put(b"%d settled" % next(self._numbers), _TOPICS[0], 0)

    def _has_all(self) -> bool:
        return self._is_joined() and self._slave.store.max_physical_offset == self._master.store.max_physical_offset

    def _is_joined(self) -> bool:
        """Whether the slave says that it follows the master of now, and not one that has gone."""
        if self._slave.broker is None or self._master.broker is None:
            return False
        slave = self._slave.broker.state.replication.slave
        if slave is None or not slave.is_connected:
            return False
        end = cast(MasterLink, slave._link)._transport
        assert isinstance(end, End)
        return end.peer.machine is self._master.machine and not end.peer.is_lost

    # --- promises ---------------------------------------------------------------------------------
    def _judge(self) -> None:
        one = self._one
        one.demand(not self._broken, "; ".join(self._broken))
        for node in self._nodes:
            if node.broker is not None and node.config.flush_disk_type is FlushDiskType.SYNC:
                store = node.store
                readable = min(store.dispatched_offset, store.max_physical_offset)  # a BLANK is passed over at its head
                one.demand(readable <= store.flushed_offset, f"{node.host}: readable, and not forced")
        if self._is_joined():
            ours, theirs = self._master.store, self._slave.store
            if not is_beginning(theirs, ours):
                one.demand(False, f"says nothing: {where_they_part(theirs, ours)}")

    def _judge_slave(self) -> None:
        if self._slave.broker is not None and self._slave not in self._unsure:
            missing = [offset for offset, one in self._on_slave.items() if not _has(self._slave.store, offset, one)]
            self._one.demand(not missing, f"acknowledged as on the slave, and not there: {missing}")

    def _acknowledged(self, offset: int) -> None:
        """Note what a slave has acknowledged: its last bytes, which have to be there, and forced where it says so."""
        if self._slave.broker is None or self._master.broker is None:
            return  # it has gone in order since
        master, slave = self._master.store, self._slave.store
        end = slave.flushed_offset if self._flush[1] is FlushDiskType.SYNC else slave.max_physical_offset
        begin = max(master.min_physical_offset, slave.min_physical_offset, offset - _BEFORE)
        if end < offset or (begin < offset and log_bytes(slave, begin, offset) != log_bytes(master, begin, offset)):
            self._broken.append(f"the slave has acknowledged {offset}, and has {end}")

    async def _judge_queues(self) -> None:
        """Queues are a rebuild of their log and, as the slave has heard of all deletions, the master's."""
        one = self._one
        await asyncio.sleep(_HEARS_S)
        same = self._has_all()
        first = max(*self._cleaned.values(), *(node.store.min_physical_offset for node in self._nodes))
        found = []
        for node in self._nodes:
            await node.stop()
            kept, rebuilt = (since(self._cleaned[node.host], one) for one in kept_and_rebuilt(node.config, one.work))
            differing = {
                at: (kept.get(at), rebuilt.get(at)) for at in kept | rebuilt if kept.get(at) != rebuilt.get(at)
            }
            one.demand(not differing, f"{node.host}: queues are not what the log makes: {differing}")
            found.append({at: (high, [one for one in offsets if one >= first]) for at, (high, offsets) in kept.items()})
        one.demand(not same or _filled(found[0]) == _filled(found[1]), f"queues of master and slave: {found}")
        one.step(f"{self._loop.now_s:.6f} logs {[_sum(node) for node in self._nodes]}")


def _has(store: MessageStore, offset: int, body: bytes) -> bool:
    """Whether a store has a message, or had it and has deleted it since as too old."""
    if offset < store.min_physical_offset:
        return True
    record = store.record(offset)
    return record is not None and body in bytes(record)


def _filled(queues: dict[tuple[str, int], tuple[int, list[int]]]) -> dict[tuple[str, int], tuple[int, list[int]]]:
    return {at: one for at, one in queues.items() if one[1]}


def _sum(node: BrokerNode) -> int:
    files = sorted(Path(node.config.commitlog_path).iterdir())
    return zlib.crc32(b"".join(path.read_bytes() for path in files))
