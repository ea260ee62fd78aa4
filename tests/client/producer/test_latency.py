"""Leaving out brokers that are slow."""

import pytest

from rmq_core.client import LONG_BACKOFF, SHORT_BACKOFF, Backoff, ProducerOptions
from rmq_core.client.producer.producer import LatencyFaults


@pytest.mark.parametrize(
    ("backoff", "latency_ms", "duration_ms"),
    [
        (LONG_BACKOFF, 549, 0),
        (LONG_BACKOFF, 550, 30_000),
        (LONG_BACKOFF, 1000, 60_000),
        (LONG_BACKOFF, 2000, 120_000),
        (LONG_BACKOFF, 3000, 180_000),
        (LONG_BACKOFF, 14_999, 180_000),
        (LONG_BACKOFF, 15_000, 600_000),
        (SHORT_BACKOFF, 549, 0),
        (SHORT_BACKOFF, 550, 2000),
        (SHORT_BACKOFF, 1800, 5000),
        (SHORT_BACKOFF, 3000, 6000),
        (SHORT_BACKOFF, 5000, 10_000),
        (SHORT_BACKOFF, 20_000, 30_000),
    ],
)
def test_latency_costs_what_the_table_says(backoff: Backoff, latency_ms: int, duration_ms: int) -> None:
    assert backoff.duration_ms(latency_ms) == duration_ms


def test_the_default_is_that_of_the_original() -> None:
    """``MQFaultStrategy`` of 5.3.3: ``latencyMax``, ``notAvailableDuration``; a failure counts as 10 s."""
    assert ProducerOptions().backoff == SHORT_BACKOFF


@pytest.mark.parametrize(("backoff", "duration_ms"), [(LONG_BACKOFF, 600_000), (SHORT_BACKOFF, 10_000)])
def test_a_failure_counts_as_a_long_latency(backoff: Backoff, duration_ms: int) -> None:
    assert backoff.duration_ms(1, failed=True) == duration_ms


def test_a_broker_is_left_out_until_its_time_is_over() -> None:
    now = [0.0]
    faults = LatencyFaults(LONG_BACKOFF, clock_ms=lambda: now[0])
    faults.update("a", 600)
    assert not faults.is_available("a")
    assert faults.is_available("b")
    now[0] = 10_000
    faults.update("a", 10)  # quick again: it stays out, but not longer
    now[0] = 29_999
    assert not faults.is_available("a")
    now[0] = 30_000
    assert faults.is_available("a")


def test_a_broker_that_cannot_be_reached_may_be_tried_again_soon() -> None:
    now = [0.0]
    faults = LatencyFaults(LONG_BACKOFF, clock_ms=lambda: now[0])
    faults.update("a", 3000, failed=True, reachable=False)
    assert (faults.is_reachable("a"), faults.is_available("a")) == (False, False)
    now[0] = 2000
    assert (faults.is_reachable("a"), faults.is_available("a")) == (True, False)
    faults.update("a", 3000, failed=True, reachable=False)
    faults.update("a", 1)
    assert faults.is_reachable("a")
