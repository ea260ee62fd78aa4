"""A broker process that is killed while timer messages wait, again and again: each comes once, and not too early."""

import asyncio
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.timer import BLANK, TIMER_UNIT_BYTES
from tests.broker.conftest import eventually
from tests.broker.test_commands import SMALL
from tests.broker.test_kill import ANSWER_S, QUEUES, stored
from tests.store.derived_from_log import check_derived, records
from tests.support.processes.forked_masters import Masters, masters
from tests.support.torture import rounds

ROUNDS = rounds(6)
SENDERS = 8
LONGEST_LOAD_S = 0.6
LONGEST_DELAY_MS = 1500
PATIENCE_S = 240  # a machine may be busy
# Checkpoints all the time, small files, and a window so small that half of the messages are stored again on the way.
SETTINGS = f"""{SMALL}timerPrecisionMs=100
timerFlushIntervalMs=20
timerRollWindowSlot=8
mappedFileSizeTimerLog={50 * TIMER_UNIT_BYTES + BLANK.size}
"""


@dataclass
class Sent:
    """What has been sent.

    Attributes:
        count: how many messages; they are numbered.
        acknowledged: numbers of those that the broker has confirmed.
    """

    count: int = 0
    acknowledged: set[int] = field(default_factory=set)


def timed(number: int) -> RemotingCommand:
    """A message that is due some time later."""
    properties = {"TIMER_DELAY_MS": str(random.randrange(LONGEST_DELAY_MS)), "UNIQ_KEY": f"U{number}"}
    fields = dict(
        zip("abcdefghm", ["pg", "T", "TBW102", "4", str(number % QUEUES), "0", "1", "0", "false"], strict=True)
    )
    return request(310, fields | {"i": encode_properties(properties).decode()}, b"%d" % number)


async def load(address: str, sent: Sent) -> None:
    """Send until the broker is gone."""
    async with RemotingClient() as client:

        async def one() -> None:
            while True:
                number = sent.count
                sent.count += 1
                answer = await client.invoke(address, timed(number), ANSWER_S)
                assert answer.code == 0, answer
                sent.acknowledged.add(number)

        for result in await asyncio.gather(*(one() for _ in range(SENDERS)), return_exceptions=True):
            assert isinstance(result, TransportError), result


async def killed_again_and_again(broker: Masters, sent: Sent) -> None:
    """Kill it in the midst of a load, with some that wait and some that are due."""
    for _ in ROUNDS:
        await asyncio.to_thread(broker.start)
        asyncio.get_running_loop().call_later(LONGEST_LOAD_S * random.random(), broker.kill)
        await load(broker.address, sent)
        assert await asyncio.to_thread(broker.ended) == -signal.SIGKILL
    await asyncio.to_thread(broker.start)

    async def all_came() -> bool:
        found = await stored(broker.address, [0] * QUEUES)
        return sent.acknowledged <= {int(body) for body in found.values()}

    await eventually(all_came, PATIENCE_S)
    async with RemotingClient() as client:  # what would come twice has come by when this one has
        last = sent.count
        assert (await client.invoke(broker.address, timed(last), ANSWER_S)).code == 0
    sent.count, sent.acknowledged = last + 1, sent.acknowledged | {last}
    await eventually(all_came, PATIENCE_S)
    os.kill(broker.pid, signal.SIGTERM)
    assert await asyncio.to_thread(broker.ended) == 0


@pytest.mark.torture
def test_each_timer_message_comes_once_whatever_is_killed(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(SETTINGS)
    sent = Sent()
    with masters(tmp_path / "store", str(tmp_path / "broker.conf"), tmp_path / "log") as broker:
        asyncio.run(killed_again_and_again(broker, sent))
    _, config, _ = load_config(str(tmp_path / "store"), tmp_path / "broker.conf", environ={})
    check_derived(config)
    came = [message for message in records(config) if message.topic == "T"]
    times = Counter(int(message.body) for message in came)
    assert sent.acknowledged <= times.keys() <= set(range(sent.count))
    assert set(times.values()) == {1}  # what was not acknowledged comes once or never
    out_ms = [(message.store_timestamp_ms, message.properties.get("TIMER_OUT_MS")) for message in came]
    # The property is the begin of an interval of 100 ms, at whose end it is due; what was due at once has none.
    assert all(stored_ms >= int(begin_ms) + 100 for stored_ms, begin_ms in out_ms if begin_ms is not None)
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert len(times) > len(ROUNDS)
