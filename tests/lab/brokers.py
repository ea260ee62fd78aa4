"""The part ``brokers``: a broker's power is cut at any change of its disk, and all promises to its clients are kept.

The messages and the cuts are those of the seed; in which order the broker's own threads come to the disk is not.
"""

import asyncio

from rmq_core.store.config import FlushDiskType
from tests.broker.power_cuts import check, cut
from tests.lab.rounds import Round

_STEPS = 60  # of the client
_PICTURES = 8


def play(one: Round) -> None:
    """Have a client use a broker, taking pictures, and start a broker on each."""
    asyncio.run(_play(one))


async def _play(one: Round) -> None:
    dice, flush = one.dice, one.dice.choice(list(FlushDiskType))
    promises, states = await cut(one.work / "live", flush, dice, _STEPS, _PICTURES)
    one.step(f"{_STEPS} steps of a client, {len(promises)} promises, {flush.name}")
    for number, state in enumerate(states):
        one.step(f"picture {number}: {state.acknowledged} promises")
        one.case()
        one.fault()
        await check(state.root, flush, promises[: state.acknowledged], dice)
