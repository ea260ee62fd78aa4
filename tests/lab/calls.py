"""The part ``calls``: gRPC calls of every method, at their limits and at random, to a proxy and a broker behind it.

The calls are those of the seed; how long the loop works on each is the machine's.
"""

from tests.lab.rounds import Round
from tests.proxy.call_fuzz import METHODS, fuzz_proxy
from tests.support.processes.fresh_processes import in_fresh_process

_AT_RANDOM = 150  # calls, in a round
_METHODS_AT_LIMITS = 2  # whose calls of all shapes are made, in a round
_MAX_SECONDS = 0.5  # of the loop's own work at a stretch, of a processor's time: gRPC reads a request in one piece
_MAX_GROWTH_BYTES = 256 << 20  # the largest request may have four million empty messages


def play(one: Round) -> None:
    """Make calls to a proxy of its own, beside a healthy client."""
    seed, limits_of = one.dice.getrandbits(32), one.dice.sample(METHODS, _METHODS_AT_LIMITS)
    one.step(f"methods {limits_of} at their limits, and {_AT_RANDOM} calls at random")
    report, broken = in_fresh_process(fuzz_proxy, one.fresh("store"), seed, _AT_RANDOM, limits_of)
    one.case(report.frames)
    one.step(f"worst: {report.worst}")
    one.demand(not broken, f"answered as nothing may be: {broken[:3]}")
    one.demand(report.healthy > 0, "the healthy client got no answer")
    one.demand(report.longest_cpu_s < _MAX_SECONDS, f"the loop worked for {report.longest_cpu_s:.2f} s at a stretch")
    one.demand(report.grown_bytes < _MAX_GROWTH_BYTES, f"memory grew by {report.grown_bytes >> 20} MiB")
