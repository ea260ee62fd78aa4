"""The part ``kills``: brokers, and writers of a store, that die at any moment and lose nothing.

When a broker dies cannot be repeated to the instant, whatever the seed; which change of the disk a writer dies at can.
"""

import asyncio
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.store.config import FlushDiskType
from tests.broker.test_commands import conf
from tests.broker.test_kill import LONGEST_LOAD_S, QUEUES, Ledger, load_and_kill, stored
from tests.lab.rounds import Round
from tests.store.derived_from_log import check_derived
from tests.store.killed_writer import Model, write_until_killed
from tests.store.small_stores import config_of, log_records, opened
from tests.support.processes.broker_processes import standalone

_BROKERS = 3  # killed in a round
_WRITERS = 12  # killed in a round
_MAX_CHANGES = 250  # of the disk, until a writer dies


def play(one: Round) -> None:
    """Kill writers, then brokers."""
    _kill_writers(one)
    try:
        _kill_brokers(one)
    except pytest.fail.Exception as failed:  # no Exception: a broker did not start
        one.demand(False, str(failed))


def _kill_writers(one: Round) -> None:
    flush = one.dice.choice(list(FlushDiskType))
    config = config_of(
        one.work / "written",
        flush_disk_type=flush,
        flush_consumequeue_interval_ms=5,
        flush_index_interval_ms=5,
        flush_interval_ms=5,
    )
    model = Model(config_of(one.work / "model"))
    first = one.dice.randrange(1 << 20)
    for number in range(_WRITERS):
        at_change = one.dice.randrange(1, _MAX_CHANGES)
        one.step(f"a writer of messages {first + number} dies at change {at_change}, {flush.name}")
        acknowledged = write_until_killed(config, first + number, at_change=at_change)
        one.case()
        store = opened(config)
        one.demand(store.max_physical_offset >= acknowledged, f"{acknowledged} acknowledged, and not there")
        one.demand(store.recovery.damages == (), f"damage: {store.recovery.damages}")
        model.follow(first + number, log_records(config))
        one.demand(store.shutdown(), "what was recovered does not shut down in order")
        check_derived(config)
    model.store.shutdown()


def _kill_brokers(one: Round) -> None:
    root, settings = one.work / "store", conf(one.work, "flushDiskType=SYNC_FLUSH\n")
    ledger = Ledger()
    for number in range(_BROKERS + 1):
        with standalone(root, "-c", settings, log=one.work / "log") as running:
            ledger.take(asyncio.run(stored(running.broker, ledger.ends())))
            if number < _BROKERS:
                after_s = LONGEST_LOAD_S * one.dice.random()
                one.step(f"a broker dies after {after_s:.3f} s of load")
                asyncio.run(load_and_kill(running, after_s, ledger))
                one.case()
            else:
                everything = asyncio.run(stored(running.broker, [0] * QUEUES))
                one.demand(everything == ledger.stored, "what was once given is given no more")
                one.demand(running.stop() == 0, "it does not stop in order")
    ledger.check()
    _, config, _ = load_config(str(root), Path(settings), environ={})
    check_derived(config)
