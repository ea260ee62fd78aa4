"""A broker that is killed under load, again and again, loses nothing that it has acknowledged."""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand, request
from tests.broker.conftest import messages
from tests.broker.test_commands import conf
from tests.store.derived_from_log import check_derived
from tests.support.processes.broker_processes import Standalone, standalone
from tests.support.torture import TIMES

ROUNDS = 20 * TIMES
SENDERS = 16
QUEUES = 4
LONGEST_LOAD_S = 0.4
ANSWER_S = 60  # a machine may be busy
Place = tuple[int, int]  # queue and offset in it


@dataclass
class Ledger:
    """What has been sent, and what has become of it.

    Attributes:
        sent: how many messages each sender has sent; they are numbered.
        acknowledged: bodies by place, of the last round.
        stored: bodies by place, as consumers have been given them.
    """

    sent: list[int] = field(default_factory=lambda: [0] * SENDERS)
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    stored: dict[Place, bytes] = field(default_factory=dict)

    def ends(self) -> list[int]:
        """The offset behind the last message of each queue."""
        ends = [0] * QUEUES
        for queue_id, offset in self.stored:
            ends[queue_id] = max(ends[queue_id], offset + 1)
        return ends

    def take(self, found: dict[Place, bytes]) -> None:
        """Check what a round has left, and know it."""
        assert {place: found.get(place) for place in self.acknowledged} == self.acknowledged
        assert not found.keys() & self.stored.keys()
        self.acknowledged.clear()
        self.stored |= found

    def check(self) -> None:
        """No message is invented or stands twice, no queue has a hole, and each sender's are in their order."""
        by_sender: dict[int, list[int]] = defaultdict(list)
        for body in (self.stored[place] for place in sorted(self.stored)):
            sender, number = map(int, body.rstrip(b".").split())
            assert body == body_of(sender, number)
            assert number < self.sent[sender]
            by_sender[sender].append(number)
        for numbers in by_sender.values():
            assert numbers == sorted(set(numbers))
        assert sum(self.ends()) == len(self.stored)


def body_of(sender: int, number: int) -> bytes:
    return b"%d %d" % (sender, number) + b"." * 2000


def send(sender: int, number: int) -> RemotingCommand:
    fields = dict(
        zip("abcdefghm", ["pg", "T", "TBW102", "4", str(sender % QUEUES), "0", "1", "0", "false"], strict=True)
    )
    return request(310, fields, body_of(sender, number))


async def load(address: str, ledger: Ledger) -> None:
    """Send until the broker is gone."""
    async with RemotingClient() as client:

        async def one(sender: int) -> None:
            while True:
                number = ledger.sent[sender]
                ledger.sent[sender] += 1
                answer = await client.invoke(address, send(sender, number), ANSWER_S)
                assert answer.code == 0, answer
                place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
                assert place not in ledger.acknowledged
                ledger.acknowledged[place] = body_of(sender, number)

        for result in await asyncio.gather(*map(one, range(SENDERS)), return_exceptions=True):
            assert isinstance(result, TransportError), result


async def load_and_kill(running: Standalone, after_s: float, ledger: Ledger) -> None:
    """Kill the broker in the midst of a load."""
    asyncio.get_running_loop().call_later(after_s, running.process.kill)
    await load(running.broker, ledger)


async def stored(address: str, begins: list[int]) -> dict[Place, bytes]:
    """All that can be pulled from there on."""
    found: dict[Place, bytes] = {}
    async with RemotingClient() as client:
        for queue_id, begin in enumerate(begins):
            offset = begin
            while True:
                fields = {
                    "consumerGroup": "cg", "topic": "T", "queueId": str(queue_id), "queueOffset": str(offset),
                    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                    "subscription": "*", "subVersion": "0",
                }  # fmt: skip
                answer = await client.invoke(address, request(11, fields), ANSWER_S)
                if answer.code != 0:
                    break
                for message in messages(answer):
                    found[queue_id, message.queue_offset] = message.body
                offset = int(answer.ext_fields["nextBeginOffset"])
    return found


@pytest.mark.torture
def test_what_was_acknowledged_survives_every_kill(tmp_path: Path) -> None:
    settings = conf(tmp_path, "flushDiskType=SYNC_FLUSH\n")
    ledger, source = Ledger(), random.Random()  # the moments cannot be repeated whatever the seed
    for number in range(ROUNDS + 1):
        with standalone(tmp_path / "store", "-c", settings, log=tmp_path / "log") as running:
            ledger.take(asyncio.run(stored(running.broker, ledger.ends())))
            if number < ROUNDS:
                asyncio.run(load_and_kill(running, LONGEST_LOAD_S * source.random(), ledger))
            else:
                assert asyncio.run(stored(running.broker, [0] * QUEUES)) == ledger.stored
                assert running.stop() == 0
    ledger.check()
    assert len(ledger.stored) > ROUNDS  # some rounds end before a first answer
    _, config, _ = load_config(str(tmp_path / "store"), Path(settings), environ={})
    check_derived(config)
