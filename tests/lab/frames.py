"""The part ``frames``: requests of every code, at their limits and at random, to a broker whose loop must not stand.

The frames are those of the seed; how long the loop works on each is the machine's.
"""

from tests.broker.frame_fuzz import fuzz_broker
from tests.lab.rounds import Round
from tests.support.processes.fresh_processes import in_fresh_process

_AT_RANDOM = 300  # frames, in a round
_CODES_AT_LIMITS = 2  # whose frames of all shapes are sent, in a round
_MAX_SECONDS = 0.1  # of the loop's own work on a frame, of a processor's time
_MAX_GROWTH_BYTES = (4 * 16 + 48) << 20  # four of the largest frames, and what the stranger itself takes


def play(one: Round) -> None:
    """Send frames to a broker of its own, beside a healthy client."""
    seed = one.dice.getrandbits(32)
    one.step(f"{_CODES_AT_LIMITS} codes at their limits, and {_AT_RANDOM} frames at random")
    report = in_fresh_process(
        fuzz_broker, one.fresh("store"), seed, codes_at_limits=_CODES_AT_LIMITS, random_frames=_AT_RANDOM
    )
    one.case(report.frames)
    one.step(f"worst: {report.worst}")
    one.demand(report.healthy > 0, "the healthy client got no answer")
    one.demand(report.longest_cpu_s < _MAX_SECONDS, f"the loop worked for {report.longest_cpu_s:.2f} s at a stretch")
    one.demand(report.grown_bytes < _MAX_GROWTH_BYTES, f"memory grew by {report.grown_bytes >> 20} MiB")
