"""Leaving brokers out for a while that were slow or have failed.

A send that took 550 ms keeps its broker out for 30 s, and so on up; one that failed counts as one of 30 s.

Source: ``MQFaultStrategy``, ``LatencyFaultToleranceImpl`` of 4.x; 5.3.3's are ``SHORT_BACKOFF``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_REACHABLE_AGAIN_MS: Final = 2000  # how soon a broker that could not be reached may be tried again


@dataclass(frozen=True, slots=True)
class Backoff:
    """For how long a broker is left out.

    Attributes:
        steps_ms: latency and what it costs, rising.
        failure_ms: the latency that a failure counts as.
    """

    steps_ms: tuple[tuple[int, int], ...]
    failure_ms: int

    def duration_ms(self, latency_ms: float, failed: bool = False) -> int:
        """How long a broker is left out after a send, in ms."""
        latency = self.failure_ms if failed else latency_ms
        return next((duration for least, duration in reversed(self.steps_ms) if latency >= least), 0)


LONG_BACKOFF: Final = Backoff(
    ((50, 0), (100, 0), (550, 30_000), (1000, 60_000), (2000, 120_000), (3000, 180_000), (15_000, 600_000)), 30_000
)
SHORT_BACKOFF: Final = Backoff(
    ((50, 0), (100, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)), 10_000
)


class LatencyFaults:
    """Which brokers may be sent to."""

    def __init__(self, backoff: Backoff = LONG_BACKOFF, clock_ms: Callable[[], float] | None = None) -> None:
        """Begin with all brokers available.

        Args:
            backoff: for how long.
            clock_ms: a clock that never goes back.
        """
        self._backoff = backoff
        self._clock_ms = clock_ms or _monotonic_ms
        self._out_until_ms: dict[str, float] = {}
        self._unreachable_until_ms: dict[str, float] = {}

    def update(self, broker_name: str, latency_ms: float, *, failed: bool = False, reachable: bool = True) -> None:
        """Take a send into account.

        Args:
            broker_name: where to.
            latency_ms: how long it took.
            failed: whether it failed.
            reachable: whether the broker could be reached.
        """
        now = self._clock_ms()
        duration = self._backoff.duration_ms(latency_ms, failed)
        if duration > 0:
            self._out_until_ms[broker_name] = max(now + duration, self._out_until_ms.get(broker_name, 0.0))
        if reachable:
            self._unreachable_until_ms.pop(broker_name, None)
        else:
            self._unreachable_until_ms[broker_name] = now + _REACHABLE_AGAIN_MS

    def is_available(self, broker_name: str) -> bool:
        """Whether it is not left out."""
        until = self._out_until_ms.get(broker_name)
        return until is None or self._clock_ms() >= until

    def is_reachable(self, broker_name: str) -> bool:
        """Whether it could be reached when it was last tried, or that is long enough ago."""
        until = self._unreachable_until_ms.get(broker_name)
        return until is None or self._clock_ms() >= until


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
