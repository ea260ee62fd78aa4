"""The part ``frames``: requests of every code, at their limits and at random, to a broker whose loop must not stand.

The frames are those of the seed; how long the loop works on each is the machine's.
"""

import asyncio

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies import SubscriptionData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.connection import Handler
from tests.broker.conftest import Asker, Clock, small_store
from tests.broker.frame_fuzz import fuzz_frames
from tests.lab.rounds import Round

_AT_RANDOM = 300  # frames, in a round
_CODES_AT_LIMITS = 2  # whose frames of all shapes are sent, in a round
_MAX_SECONDS = 0.1  # of the loop's own work on a frame, of a processor's time
_MAX_GROWTH_BYTES = (4 * 16 + 48) << 20  # four of the largest frames, and what the stranger itself takes


def play(one: Round) -> None:
    """Send frames to a broker of its own, beside a healthy client."""
    asyncio.run(_play(one))


async def _play(one: Round) -> None:
    root = one.fresh("store")
    handlers: dict[int, Handler] = {}
    config = BrokerConfig(listen_port=0, channel_expired_timeout_ms=1 << 31)
    async with Broker(config, small_store(root), Clock()) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)

        async def healthy() -> None:
            one.demand((await asker.send("Healthy")).code == 0, "a healthy sender is refused")

        await asker.send("T", properties={"KEYS": "k"})
        await asker.heartbeat("G", SubscriptionData(topic="T"))
        codes = sorted(broker._server._handlers)
        limits_of = one.dice.sample(codes, _CODES_AT_LIMITS)
        one.step(f"codes {limits_of} at their limits, and {_AT_RANDOM} frames at random")
        report = await fuzz_frames(
            broker.address, codes, one.dice.getrandbits(32), _AT_RANDOM, limits_of=limits_of, healthy=healthy
        )
    one.case(report.frames)
    one.step(f"worst: {report.worst}")
    one.demand(report.healthy > 0, "the healthy client got no answer")
    one.demand(report.longest_cpu_s < _MAX_SECONDS, f"the loop worked for {report.longest_cpu_s:.2f} s at a stretch")
    one.demand(report.grown_bytes < _MAX_GROWTH_BYTES, f"memory grew by {report.grown_bytes >> 20} MiB")
