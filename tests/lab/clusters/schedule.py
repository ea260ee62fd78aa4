"""The part ``clusters``: a name server, a master, its slaves and clients, in virtual time over a network in memory.

Connections are cut, held up and half-open; disks are full, hang, fail and lose their power; brokers are killed and
rejoin; topics are deleted and made again; clocks jump. All of it is told by the seed.
"""

import asyncio
import random
import traceback
import zlib
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any, cast

from rmq_core.broker.config import BrokerConfig
from rmq_core.ha.slave import HaSlave, MasterLink
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import FlushDiskType
from rmq_formats.codecs.properties import encode_properties
from tests.lab.clusters.deliveries import delivered_twice
from tests.lab.clusters.faults import Faults
from tests.lab.clusters.members import HOSTS as MEMBER_HOSTS
from tests.lab.clusters.members import Members
from tests.lab.clusters.nodes import PORT, BrokerNode
from tests.lab.clusters.promises import Promises
from tests.lab.clusters.two_logs import is_beginning, kept_and_rebuilt, since, where_they_part
from tests.lab.rounds import Round
from tests.lab.virtual.loop import VirtualLoop
from tests.lab.virtual.network import End, Machine
from tests.store.small_stores import NOW_MS, config_of

_STEPS = 75
_TOPICS = ("T", "Other")
_QUEUES = 3
_MASTER, _SLAVES, _NAMESRV, _CLIENT = "10.0.0.1", ("10.0.0.2", "10.0.0.9"), "10.0.0.3", "10.0.0.4"
_NAMESRV_PORT = 9876
_PATIENCE_S = 600  # of virtual time: a slave whose store refuses tries again after thirty seconds
_HEARS_S = 10  # in which a slave learns of a master that was away, at its next registration, and of its topics


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
        self._numbers = count()
        self._client_machine = Machine(_CLIENT)
        self._client = RemotingClient()
        names = NamesrvConfig(
            bind_address=_NAMESRV, listen_port=_NAMESRV_PORT, kv_config_path=str(one.work / "kv.json")
        )
        self._namesrv = NameServer(names, lambda: NOW_MS + int(loop.now_s * 1000))
        self._sends: set[asyncio.Task[None]] = set()
        waits = dice.random() < 0.5
        self._in_sync = dice.choice([2, 2, 3])
        self._master = self._node(_MASTER, "SYNC_MASTER" if waits else "ASYNC_MASTER", 0)
        self._slaves = [self._node(host, "SLAVE", number) for number, host in enumerate(_SLAVES, 1)]
        self._nodes = [self._master, *self._slaves]
        self._promises = Promises(one, self._master, self._slaves, self._in_sync - 1, waits=waits)
        self._faults = Faults(one, loop.network, self._nodes, [_NAMESRV, _CLIENT, *MEMBER_HOSTS], self._promises)
        self._members = Members(loop, f"{_NAMESRV}:{_NAMESRV_PORT}", one.seed, self._master)
        kinds = [f"{node.host} {node.config.flush_disk_type.name}" for node in self._nodes]
        one.step(f"{', '.join(kinds)}; waits: {waits}, in sync: {self._in_sync}")

    def _node(self, host: str, role: str, broker_id: int) -> BrokerNode:
        config = BrokerConfig(
            bind_address=host,
            listen_port=PORT,
            broker_ip1=host,
            broker_role=role,
            broker_id=broker_id,
            namesrv_addr=f"{_NAMESRV}:{_NAMESRV_PORT}",
            in_sync_replicas=self._in_sync,
            slave_timeout_ms=1000,
            slave_sync_interval_ms=2000,
            register_name_server_period_ms=5000,
            ha_transfer_batch_size=3000,
            timer_log_file_bytes=520,
            timer_roll_window_slots=8,
            remote_admin_enable=True,
        )
        store = config_of(
            self._one.work,
            flush_disk_type=self._dice.choice((FlushDiskType.ASYNC, FlushDiskType.SYNC)),
            slave=config.is_slave,
            delete_batch=2,
            preallocate=self._dice.random() < 0.5,
        )
        return BrokerNode(self._loop, self._one.work, config, store, self._one.seed)

    async def play(self) -> None:
        """Take all steps, and look at the promises."""
        one, dice = self._one, self._dice
        steps: list[tuple[int, Callable[[], Awaitable[None] | None]]] = [
            (24, self._send), (24, self._produce), (4, self._rejoin), (8, self._settle), (6, self._lose_power),
            (4, self._kill), (4, self._restart), (4, self._delete_topic), (4, self._wait), *self._faults.steps(),
        ]  # fmt: skip
        weights, actions = zip(*steps, strict=True)
        with Machine(_NAMESRV).owns():
            await self._namesrv.start()
        try:
            for node in self._nodes:
                await self._start(node)
            await self._members.start()
            for action in dice.choices(actions, weights, k=_STEPS):
                self._tell(action.__name__.lstrip("_"))
                if isawaitable(done := action()):
                    await done
                one.case()
                await asyncio.sleep(dice.choice([0.0, 0.002, 0.05, 0.5, 3.0]))
                self._judge()
            await self._settle()
            await self._judge_deliveries()
            await self._judge_queues()
        finally:
            self._loop.network.heal()
            for task in self._sends:
                task.cancel()
            await self._members.close()
            await self._client.close()
            for node in reversed(self._nodes):
                await node.end()
            await self._namesrv.close()

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Nothing that a loop runs may fail with an error that nobody has expected."""
        error = context.get("exception")
        frames = traceback.extract_tb(error.__traceback__)[-4:] if error is not None else []
        where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        self._promises.broken.append(f"{context['message']}: {type(error).__name__}: {error} at {where}")

    def _tell(self, what: str) -> None:
        ends = [
            f"{node.store.max_physical_offset}, {node.store.flushed_offset} forced" if node.broker else "down"
            for node in self._nodes
        ]
        self._one.step(f"{self._loop.now_s:.6f} {what}; master {ends[0]}; slaves {'; '.join(ends[1:])}")
        for node in self._nodes:
            for fault in node.disk.faults:
                self._one.fault()
                self._one.step(f"    {node.host}: {fault}")
                node.is_well = False
            node.disk.faults.clear()

    # --- a client's steps -----------------------------------------------------------------------
    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    def _send(self) -> None:
        for _ in range(self._dice.randrange(1, 10)):
            body = b"%d " % next(self._numbers) + self._dice.randbytes(self._dice.choice([10, 100, 100, 2500]))
            with self._client_machine.owns():
                put = self._put(body, self._dice.choice(_TOPICS), self._dice.randrange(_QUEUES))
                self._keep(asyncio.create_task(put))

    def _produce(self) -> None:
        """Our producer sends messages, which our consumers are given."""
        for _ in range(self._dice.randrange(1, 6)):
            self._keep(self._members.send_soon(self._promises.promise()))

    async def _rejoin(self) -> None:
        await self._members.restart_one()

    async def _ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> RemotingCommand | None:
        """A request to the master and its answer; None where none comes."""
        command = request(code, {name: str(value) for name, value in fields.items()}, body)
        try:
            return await self._client.invoke(self._master.address, command)
        except RemotingError as error:
            self._one.step(f"{self._loop.now_s:.6f}     no answer: {type(error).__name__}")
            return None

    async def _put(self, body: bytes, topic: str, queue_id: int) -> None:
        await self._is_put(body, topic, queue_id)

    async def _is_put(self, body: bytes, topic: str, queue_id: int) -> bool:
        """Send a message; whether all that the answer may promise is promised."""
        properties = encode_properties({"UNIQ_KEY": f"{zlib.crc32(body):032X}", "WAIT": "true"}).decode()
        fields: dict[str, object] = {
            "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": NOW_MS, "h": 0,
            "i": properties, "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        promised = self._promises.promise()
        answer = await self._ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        if answer is None:
            return False
        self._one.step(f"{self._loop.now_s:.6f}     answered {answer.code} {answer.ext_fields.get('msgId', '')[16:]}")
        if answer.code != ResponseCode.SUCCESS:
            return False
        promised(int(answer.ext_fields["msgId"][16:], 16), body)
        return True

    def _delete_topic(self) -> None:
        topic = self._dice.choice(_TOPICS)
        with self._client_machine.owns():
            self._keep(asyncio.create_task(self._delete(topic)))

    async def _delete(self, topic: str) -> None:
        answer = await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        self._one.step(f"{self._loop.now_s:.6f}     deleted {topic}: {answer and answer.code}")

    async def _wait(self) -> None:
        await asyncio.sleep(self._dice.choice([1, 5, 25]))

    # --- lives of brokers -----------------------------------------------------------------------
    async def _kill(self) -> None:
        if (node := self._faults.up()) is not None:
            self._one.fault()
            node.kill()
            await self._later(node)

    async def _lose_power(self) -> None:
        if (node := self._faults.up()) is not None:
            self._one.fault()
            self._lose(node)
            await self._later(node)

    def _lose(self, node: BrokerNode) -> None:
        self._promises.loses_power(node)
        node.lose_power(self._dice.choice([1.0, 1.0, 0.5]))

    async def _restart(self) -> None:
        if (node := self._faults.up()) is not None:
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
            ends = f"{node.store.min_physical_offset} to {node.store.max_physical_offset}"
            self._one.step(f"    {node.host} has started: {ends}")
            self._promises.started(node)

    # --- all goes well again --------------------------------------------------------------------
    async def _settle(self) -> None:
        """Each slave has all after a while, or says that its log is another; then it is wiped."""
        self._loop.network.heal()
        for node in self._nodes:
            if node.broker is not None and node.store.fault is not None:
                self._lose(node)
            node.well()
            await self._start(node)
        deadline = self._loop.now_s + _PATIENCE_S
        while not self._have_all():
            troubles = [(slave.host, _ha(slave).refusal_reason) for slave in self._slaves if not self._has_all(slave)]
            self._one.demand(self._loop.now_s < deadline, f"neither follow nor say: {troubles}")
            for slave in self._slaves:
                if _ha(slave).has_diverged and _ha(slave).refusal_reason:
                    await self._wipe(slave)
            if not all(slave.store.max_physical_offset for slave in self._slaves):
                await self._settled()  # of a log that ends with a file an empty one gets what is new
            await asyncio.sleep(0.5)
        self._judge()
        self._promises.judge_slaves()
        while not await self._settled():
            self._one.demand(self._loop.now_s < deadline, "all is well, and a message is not taken")
            await asyncio.sleep(0.5)

    async def _wipe(self, slave: BrokerNode) -> None:
        """Have a slave that says that its log is another begin anew; what it says is true."""
        self._judge()
        ours, theirs = self._master.store, slave.store
        is_false = ours.min_physical_offset < theirs.max_physical_offset and is_beginning(theirs, ours)
        if is_false:
            self._one.demand(False, f"{slave.host}: {_ha(slave).refusal_reason}: {where_they_part(theirs, ours)}")
        self._one.step(f"    {slave.host} is apart: {_ha(slave).refusal_reason}")
        slave.wipe()
        self._promises.wiped(slave)
        self._faults.cleaned[slave.host] = 0
        await self._start(slave)

    async def _settled(self) -> bool:
        """Send one message more; whether it is taken."""
        with self._client_machine.owns():
            return await self._is_put(b"%d settled" % next(self._numbers), _TOPICS[0], 0)

    def _have_all(self) -> bool:
        return all(self._has_all(slave) for slave in self._slaves)

    def _has_all(self, slave: BrokerNode) -> bool:
        return self._is_joined(slave) and slave.store.max_physical_offset == self._master.store.max_physical_offset

    def _is_joined(self, slave: BrokerNode) -> bool:
        """Whether a slave says that it follows the master of now, and not one that has gone."""
        if slave.broker is None or self._master.broker is None or not _ha(slave).is_connected:
            return False
        end = cast(MasterLink, _ha(slave)._link)._transport
        assert isinstance(end, End)
        return end.peer.machine is self._master.machine and not end.peer.is_lost

    # --- promises ---------------------------------------------------------------------------------
    def _judge(self) -> None:
        one = self._one
        one.demand(not self._promises.broken, "; ".join(self._promises.broken))
        wrong = self._members.deliveries.wrong
        one.demand(not wrong, f"consumers: {'; '.join(wrong)}")
        for node in self._nodes:
            if node.broker is not None and node.config.flush_disk_type is FlushDiskType.SYNC:
                store = node.store
                readable = min(store.dispatched_offset, store.max_physical_offset)  # a BLANK is passed over at its head
                one.demand(readable <= store.flushed_offset, f"{node.host}: readable, and not forced")
        for slave in self._slaves:
            if self._is_joined(slave) and not is_beginning(slave.store, self._master.store):
                one.demand(False, f"{slave.host} says nothing: {where_they_part(slave.store, self._master.store)}")

    async def _judge_deliveries(self) -> None:
        """All is well: each message that is there was given to its groups, and those in order in their order.

        Consumers that run on while a master loses what they have seen may pass over what comes in its place.
        """
        if not self._promises.is_certain:
            return
        for node in self._nodes:
            node.set_clock(0)  # what waits for its time is due soon
        deliveries = self._members.deliveries
        deadline = self._loop.now_s + _PATIENCE_S
        while missing := deliveries.not_given(self._master.store, self._faults.old):
            self._one.demand(self._loop.now_s < deadline, f"never given to their group: {missing}")
            await self._members.be_complete()
            await asyncio.sleep(1)
        wrong = deliveries.not_in_order
        self._one.demand(not wrong, f"given in another order: {wrong}")

    async def _judge_queues(self) -> None:
        """Queues are a rebuild of their log and, as slaves have heard of all deletions, the master's."""
        one, cleaned = self._one, self._faults.cleaned
        await asyncio.sleep(_HEARS_S)
        same = [self._has_all(slave) for slave in self._slaves]
        first = max(*cleaned.values(), *(node.store.min_physical_offset for node in self._nodes))
        found = []
        for node in self._nodes:
            await node.stop()
            kept, rebuilt = (since(cleaned[node.host], one) for one in kept_and_rebuilt(node.config, one.work))
            differing = {
                at: (kept.get(at), rebuilt.get(at)) for at in kept | rebuilt if kept.get(at) != rebuilt.get(at)
            }
            one.demand(not differing, f"{node.host}: queues are not what the log makes: {differing}")
            found.append({at: (high, [one for one in offsets if one >= first]) for at, (high, offsets) in kept.items()})
        for slave, is_same, theirs in zip(self._slaves, same, found[1:], strict=True):
            one.demand(
                not is_same or _filled(found[0]) == _filled(theirs),
                f"queues of the master and {slave.host}: {found[0]} {theirs}",
            )
        twice = delivered_twice(self._master.config, levels=self._master.is_well)
        one.demand(not twice, f"delivered twice: {twice}")
        one.step(f"{self._loop.now_s:.6f} logs {[_sum(node) for node in self._nodes]}")


def _ha(slave: BrokerNode) -> HaSlave:
    """The HA client of a slave that is up."""
    assert slave.broker is not None
    found = slave.broker.state.replication.slave
    assert found is not None
    return found


def _filled(queues: dict[tuple[str, int], tuple[int, list[int]]]) -> dict[tuple[str, int], tuple[int, list[int]]]:
    return {at: one for at, one in queues.items() if one[1]}


def _sum(node: BrokerNode) -> int:
    files = sorted(Path(node.config.commitlog_path).iterdir())
    return zlib.crc32(b"".join(path.read_bytes() for path in files))
