"""A broker whose power is cut: a client that notes what it was promised, and what a broker makes of what is left."""

import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables.names import SCHEDULE_TOPIC
from rmq_core.broker.timer.schedule import DelayOffsets
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import OffsetTable
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.record import StoredMessage, decode_record
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store
from tests.store.power_loss import Camera, State
from tests.support.stores.store_files import tree

COMMIT, ROLLBACK = 8, 12
_ONE_IN: Final = 40  # changes of the disk
HOURS_MS: Final = 3 * 3_600_000
CONFIG: Final = BrokerConfig(
    listen_port=0,
    flush_consumer_offset_interval_ms=20,
    flush_delay_offset_interval_ms=20,
    timer_flush_interval_ms=20,
    timer_precision_ms=100,
    transaction_op_batch_interval_ms=30,
    transaction_check_interval_ms=3_600_000,
    transaction_timeout_ms=0,
    transaction_check_max=10_000,
)


class Promise(NamedTuple):
    """What a client was told.

    Attributes:
        topic: where the message is to be read at last.
        body: names it.
        kind: what was asked for.
        is_half: it need not be there if the producer is asked about it.
        is_over: a rollback: it is asked for no more.
    """

    topic: str
    body: bytes
    kind: str
    is_half: bool = False
    is_over: bool = False


class Client(Asker):
    """A client of all kinds of messages.

    Attributes:
        promises: by the broker, in the order of its answers.
        asked: bodies of half messages that the broker has asked about.
    """

    def __init__(self, broker: Broker, client: RemotingClient, handlers: dict[int, Handler], clock: Clock) -> None:
        super().__init__(broker, client, handlers)
        self.clock = clock
        self.promises: list[Promise] = []
        self.asked: set[bytes] = set()
        self._halves: list[tuple[Promise, RemotingCommand]] = []
        self._sent: list[tuple[bytes, str]] = []
        self._topics = ["T0"]
        handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._check

    def _check(self, command: RemotingCommand, _: Connection) -> None:
        self.asked.add(decode_record(command.body).body)

    async def work(self, source: random.Random, steps: int) -> None:
        """Do something of each kind in turn, as chance has it."""
        kinds: list[Callable[[random.Random, bytes], Awaitable[None]]] = [
            self._send, self._send, self._send, self._delay, self._time, self._half, self._end, self._send_back,
            self._read, self._look_through,
        ]  # fmt: skip
        await self.heartbeat("readers")
        for number in range(steps):
            if source.random() < 0.15:
                self._topics.append(f"T{number}")
            await source.choice(kinds)(source, b"%d" % number)
            self.clock.ahead_ms += source.choice([0, 50, 700])

    def _topic(self, source: random.Random) -> str:
        return source.choice(self._topics[-3:])

    async def _put(self, promise: Promise, properties: dict[str, str]) -> RemotingCommand:
        more = {"UNIQ_KEY": f"K{promise.body.decode()}", "WAIT": "true"}
        answer = await self.send(promise.topic, promise.body, g=self.clock(), properties=properties | more)
        if answer.code == 0:
            self.promises.append(promise)
        return answer

    async def _send(self, source: random.Random, body: bytes) -> None:
        answer = await self._put(Promise(self._topic(source), body, "send"), {})
        self._sent.append((body, answer.ext_fields["msgId"]))

    async def _delay(self, source: random.Random, body: bytes) -> None:
        await self._put(Promise(self._topic(source), body, "delay"), {"DELAY": source.choice("12")})

    async def _time(self, source: random.Random, body: bytes) -> None:
        await self._put(Promise(self._topic(source), body, "time"), {"TIMER_DELAY_MS": source.choice(["300", "2000"])})

    async def _half(self, source: random.Random, body: bytes) -> None:
        promise = Promise(self._topic(source), body, "half", is_half=True)
        self._halves.append((promise, await self._put(promise, {"TRAN_MSG": "true", "PGROUP": "pg"})))

    async def _end(self, source: random.Random, _: bytes) -> None:
        if self._halves:
            promise, sent = self._halves.pop()
            outcome = source.choice([COMMIT, COMMIT, ROLLBACK])
            fields: dict[str, object] = {
                "producerGroup": "pg", "tranStateTableOffset": sent.ext_fields["queueOffset"],
                "commitLogOffset": int(sent.ext_fields["msgId"][-16:], 16), "commitOrRollback": outcome,
                "fromTransactionCheck": "true", "msgId": sent.ext_fields["transactionId"],
            }  # fmt: skip
            answer = await self.ask(RequestCode.END_TRANSACTION, fields)
            if answer.code == 0:
                self.promises.append(
                    promise._replace(kind="end", is_half=outcome == ROLLBACK, is_over=outcome == ROLLBACK)
                )

    async def _send_back(self, source: random.Random, _: bytes) -> None:
        if self._sent:
            body, msg_id = self._sent.pop()
            group = source.choice(["readers", f"g{len(self.promises)}"])
            fields: dict[str, object] = {"offset": int(msg_id[-16:], 16), "group": group, "delayLevel": 1}
            answer = await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            if answer.code == 0:
                self.promises.append(Promise(f"%RETRY%{group}", body, "send back"))

    async def _read(self, source: random.Random, _: bytes) -> None:
        topic = self._topic(source)
        answer = await self.pull(topic, consumerGroup="readers", sysFlag=4)
        if found := messages(answer):
            fields: dict[str, object] = {
                "consumerGroup": "readers", "topic": topic, "queueId": 0, "commitOffset": found[-1].queue_offset + 1,
            }  # fmt: skip
            await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _look_through(self, _: random.Random, __: bytes) -> None:
        await self.broker.checks.check()


def cut_store(root: Path, flush: FlushDiskType) -> StoreConfig:
    """Settings of a store whose power is cut."""
    return replace(
        small_store(root, flush), delay_levels="1s 2s", flush_interval_ms=300, flush_consumequeue_interval_ms=50
    )


async def cut(
    root: Path, flush: FlushDiskType, source: random.Random, steps: int, pictures: int
) -> tuple[list[Promise], list[State]]:
    """Have a client use a broker, and take pictures of its directory, as losses of power may leave it.

    Args:
        root: of the store, which is not there yet.
        flush: as the broker is set.
        source: of chance.
        steps: of the client.
        pictures: at most.

    Returns:
        All promises that were made, and the pictures, each with how many of them had been made.
    """
    clock, clients = Clock(), list[Client]()
    camera = Camera(
        root, random.Random(source.random()), pictures, _ONE_IN, lambda: len(clients[0].promises) if clients else 0
    )
    handlers: dict[int, Handler] = {}
    async with (
        Broker(CONFIG, cut_store(camera.disk.root, flush), clock, camera.disk) as broker,
        RemotingClient(handlers) as remoting,
    ):
        clients.append(Client(broker, remoting, handlers, clock))
        await clients[0].work(source, steps)
    camera.disk.close_kept()
    return clients[0].promises, camera.states


async def check(
    root: Path, flush: FlushDiskType, promises: list[Promise], source: random.Random, cuts: int = 1
) -> None:
    """What is left after a loss of power keeps all promises, and no progress is ahead of it.

    Args:
        root: what is left.
        flush: as the broker was set.
        promises: made before; with ASYNC_FLUSH they count as far as the log has them.
        source: of chance.
        cuts: how often the power is cut again, while the broker starts or has just begun to work.
    """
    copy = Path(f"{root}.copy")
    survived = _recover_twice(cut_store(shutil.copytree(root, copy), flush))
    shutil.rmtree(copy)
    camera = Camera(root, source, cuts, 12, lambda: None)
    await _keep(cut_store(root, flush), camera.disk, survived, promises)
    camera.disk.close_kept()
    for state in camera.states:
        await check(state.root, flush, promises, source, cuts - 1)
    shutil.rmtree(root)


async def _keep(config: StoreConfig, disk: Disk, survived: list[StoredMessage], promises: list[Promise]) -> None:
    """A broker keeps promises on what survived."""
    if config.flush_disk_type is FlushDiskType.SYNC:
        there = {one.body for one in survived}
        assert [one for one in promises if one.body not in there] == [], "acknowledged, and not in the log"
        wanted = set(promises)
    else:
        ends = {one: one._replace(is_half=one.is_half or one.kind == "end") for one in promises}
        wanted = {ends[one] for one in promises if any(_promises(left, one) for left in survived)}
    over = {one.body for one in wanted if one.is_over}
    clock = Clock()
    clock.ahead_ms = HOURS_MS
    handlers: dict[int, Handler] = {}
    async with Broker(CONFIG, config, clock, disk) as broker, RemotingClient(handlers) as remoting:
        client = Client(broker, remoting, handlers, clock)
        await client.heartbeat("readers")
        ahead = {
            (key, queue): (offset, broker.store.next_offset(key.split("@")[0], queue))
            for key, queues in broker.state.offsets.table.items()
            for queue, offset in queues.items()
        }
        assert {key: pair for key, pair in ahead.items() if pair[0] > pair[1]} == {}

        def missing() -> list[Promise]:
            return [
                one
                for one in wanted
                if one.body not in over and not (one.is_half and one.body in client.asked) and not _is_read(broker, one)
            ]

        async def is_kept() -> bool:
            clock.ahead_ms += 1000
            await broker.checks.check()
            return not missing()

        try:
            await eventually(is_kept, 60)
        except AssertionError:
            raise AssertionError(f"not delivered, and not asked about: {missing()}") from None


def _promises(left: StoredMessage, promise: Promise) -> bool:
    return left.body == promise.body and left.properties.get("REAL_TOPIC", left.topic) == promise.topic


def _is_read(broker: Broker, promise: Promise) -> bool:
    """Whether consumers find a message: its topic is known, and a queue of it has the message."""
    if promise.topic not in broker.state.topics.table:
        return False
    store = broker.store
    for queue_id in store.topics().get(promise.topic, []):
        offset = store.min_offset(promise.topic, queue_id)
        while offset < store.max_offset(promise.topic, queue_id):
            found = store.get(promise.topic, queue_id, offset, 32)
            if any(decode_record(data, at).body == promise.body for data in found.slices for at in _starts(data)):
                return True
            offset = found.next_offset
    return False


def _starts(data: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def _recover_twice(config: StoreConfig) -> list[StoredMessage]:
    """Recover a store; what the log has. A second recovery changes nothing, and no progress is ahead of the log."""
    found: list[StoredMessage] = []
    before: dict[str, bytes] = {}
    for times in range(2):
        store = MessageStore.open(config, 0, disk=Disk())
        if not times:
            assert _ahead(store) == {}
            found = _log(store)
        assert store.shutdown()
        after = {
            name: data for name, data in tree(Path(config.root)).items() if name.startswith(("commitlog", "consumeq"))
        }
        assert not times or after == before
        before = after
    return found


def _ahead(store: MessageStore) -> dict[str, tuple[int, int]]:
    """Offsets in the files of consumers' and delay levels' progress that are beyond their queue's end."""
    config = Path(store.config.root, "config")
    offsets: dict[tuple[str, int], int] = {}
    if (path := config / "consumerOffset.json").exists():
        for key, queues in decode_body(path.read_bytes(), OffsetTable).offset_table.items():
            offsets |= {(key, queue): offset for queue, offset in queues.items()}
    if (path := config / "delayOffset.json").exists():
        levels = decode_body(path.read_bytes(), DelayOffsets).offset_table
        offsets |= {(SCHEDULE_TOPIC, level - 1): offset for level, offset in levels.items()}
    ends = {place: store.next_offset(place[0].split("@")[0], place[1]) for place in offsets}
    return {
        f"{key} {queue}": (offset, ends[key, queue])
        for (key, queue), offset in offsets.items()
        if offset > ends[key, queue]
    }


def _log(store: MessageStore) -> list[StoredMessage]:
    found, at = [], store.min_physical_offset
    while (message := store.message(at)) is not None:
        found.append(message)
        at += message.size
        if store.message(at) is None and at < store.max_physical_offset:  # a BLANK: the next file
            at += -at % store.config.commitlog_file_bytes
    return found
