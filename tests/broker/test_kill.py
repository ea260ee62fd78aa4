"""A broker that is killed under load loses nothing that it has acknowledged."""

import asyncio
from pathlib import Path

from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand, request
from tests.broker.conftest import messages
from tests.broker.processes import Standalone, standalone
from tests.broker.test_commands import conf

ROUNDS = 4
SENDERS = 16
QUEUES = 4
Place = tuple[int, int]  # queue and offset in it


def send(sender: int, number: int) -> RemotingCommand:
    fields = dict(
        zip("abcdefghm", ["pg", "T", "TBW102", "4", str(sender % QUEUES), "0", "1", "0", "false"], strict=True)
    )
    return request(310, fields, b"%d of %d" % (number, sender) + b"." * 2000)


async def load(address: str, acknowledged: dict[Place, bytes]) -> None:
    """Send until the broker is gone."""
    async with RemotingClient() as client:

        async def one(sender: int) -> None:
            number = 0
            while True:
                command = send(sender, number)
                body = bytes(command.body)
                answer = await client.invoke(address, command)
                assert answer.code == 0, answer
                place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
                assert place not in acknowledged
                acknowledged[place] = body
                number += 1

        for result in await asyncio.gather(*map(one, range(SENDERS)), return_exceptions=True):
            assert isinstance(result, TransportError), result


async def load_and_kill(running: Standalone, after_s: float, acknowledged: dict[Place, bytes]) -> None:
    """Kill the broker in the midst of a load."""
    asyncio.get_running_loop().call_later(after_s, running.process.kill)
    await load(running.broker, acknowledged)


async def stored(address: str) -> dict[Place, bytes]:
    """All that can be pulled."""
    found: dict[Place, bytes] = {}
    async with RemotingClient() as client:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                fields = {
                    "consumerGroup": "cg", "topic": "T", "queueId": str(queue_id), "queueOffset": str(offset),
                    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                    "subscription": "*", "subVersion": "0",
                }  # fmt: skip
                answer = await client.invoke(address, request(11, fields))
                if answer.code != 0:
                    break
                for message in messages(answer):
                    found[queue_id, message.queue_offset] = message.body
                offset = int(answer.ext_fields["nextBeginOffset"])
    return found


def test_what_was_acknowledged_survives_every_kill(tmp_path: Path) -> None:
    settings = conf(tmp_path, "flushDiskType=SYNC_FLUSH\n")
    acknowledged: dict[Place, bytes] = {}
    for number in range(ROUNDS + 1):
        with standalone(tmp_path / "store", "-c", settings, log=tmp_path / "log") as running:
            found = asyncio.run(stored(running.broker))
            assert {place: found.get(place) for place in acknowledged} == acknowledged
            if number == ROUNDS:
                assert running.stop() == 0
                break

            asyncio.run(load_and_kill(running, 0.3 + 0.2 * number, acknowledged))
    assert len(acknowledged) > ROUNDS * SENDERS
