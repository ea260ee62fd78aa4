"""Fault tolerance of sends by latency: brokers that were slow or have failed are avoided for a while.

Source: ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from rmq_core.client.options import Backoff

_REACHABLE_AGAIN_MS: Final = 2000  # how soon a broker that could not be reached may be tried again


class LatencyFaults:
    """Latencies of brokers, and which may be sent to."""

    def __init__(self, backoff: Backoff, clock_ms: Callable[[], float] | None = None) -> None:
        """Begin with all brokers available; ``clock_ms`` never goes back, and is by default the event loop's."""
        self._backoff = backoff
        self._clock_ms = clock_ms or _loop_ms
        self._out_until_ms: dict[str, float] = {}
        self._unreachable_until_ms: dict[str, float] = {}

    def update(self, broker_name: str, latency_ms: float, *, failed: bool = False, reachable: bool = True) -> None:
        """Record the latency, or the failure, of a send."""
        now = self._clock_ms()
        duration = self._backoff.duration_ms(latency_ms, failed)
        if duration > 0:
            self._out_until_ms[broker_name] = max(now + duration, self._out_until_ms.get(broker_name, 0.0))
        if reachable:
            self._unreachable_until_ms.pop(broker_name, None)
        else:
            self._unreachable_until_ms[broker_name] = now + _REACHABLE_AGAIN_MS

    def is_available(self, broker_name: str) -> bool:
        """Return True if a broker is not avoided now."""
        until = self._out_until_ms.get(broker_name)
        return until is None or self._clock_ms() >= until

    def is_reachable(self, broker_name: str) -> bool:
        """Return True if a broker was reachable at the last attempt, or if that was long enough ago."""
        until = self._unreachable_until_ms.get(broker_name)
        return until is None or self._clock_ms() >= until


def _loop_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
