"""The part ``power``: losses of power at any change of the disk, and within the recovery from one.

A picture is what the disk may hold after a loss of power: all that was forced, and of the rest any sectors and names.
It must recover to all that was acknowledged and nothing else; a second recovery must change nothing.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rmq_core.store.config import FlushDiskType, StoreConfig
from tests.lab.judged_store import Expectations, Files, Records, files_of, judge_derived, judge_log, own_records
from tests.lab.rounds import Round
from tests.lab.stepped_store import SteppedStore, put_some
from tests.store.power_loss import LossyDisk
from tests.store.small_stores import QuickDisk, config_of, put

_MESSAGES = 24
_PICTURES = 30  # of the life of a store
_DEEPER = 3  # pictures of the recovery of a picture, and of the recovery of that: one in so many
_AGAIN = 2  # and one in so many is recovered a second time
_LOSSES = (0.1, 0.5, 0.9, 1.0)
_EXPECTATIONS = Expectations()


@dataclass(frozen=True, slots=True)
class State:
    """What a disk held after a loss of power, and what had been acknowledged."""

    root: Path
    acknowledged: int
    lose: float


class Camera:
    """Takes pictures of a disk at changes that chance picks.

    Attributes:
        disk: for the store.
        states: the pictures.
        acknowledged: tells, when a picture is taken, what has been acknowledged.
    """

    def __init__(self, root: Path, dice: random.Random, most: int, one_in: int) -> None:
        root.mkdir(exist_ok=True)
        self.disk = LossyDisk(root, self._on_change)
        self.states: list[State] = []
        self.acknowledged: Callable[[], int] = int
        self._root = root
        self._dice = dice
        self._most = most
        self._one_in = one_in

    def _on_change(self) -> None:
        if len(self.states) < self._most and self._dice.random() * self._one_in < 1:
            acknowledged, lose = self.acknowledged(), self._dice.choice(_LOSSES)
            target = self._root.with_name(f"{self._root.name}.{len(self.states)}")
            self.disk.picture(target, self._dice, lose=lose)
            self.states.append(State(target, acknowledged, lose))


def play(one: Round) -> None:
    """Write a small store, taking pictures, and judge each."""
    dice = one.dice
    config = config_of(
        one.work / "live",
        flush_disk_type=dice.choice(list(FlushDiskType)),
        preallocate=dice.random() < 0.5,
        append_crc_property=dice.random() < 0.3,
        commitlog_file_bytes=4096,
        consumequeue_file_bytes=100,
        index_slots=20,
        index_entries=40,
    )
    states, sent = _live(one, config)
    for number, state in enumerate(states):
        one.step(f"picture {number}: acknowledged up to {state.acknowledged}, lose {state.lose}")
        _judge(one, state, sent, config, 2)


def _live(one: Round, config: StoreConfig) -> tuple[list[State], Records]:
    """A store's life, from its first opening to its shutdown, step by step."""
    dice = one.dice
    camera = Camera(Path(config.root), random.Random(dice.random()), _PICTURES, 1 + dice.randrange(6))
    stepped = SteppedStore(config, camera.disk)
    store = stepped.store
    camera.acknowledged = lambda: store.flushed_offset
    for number in range(_MESSAGES):
        put_some(store, dice, number)
        chance = dice.random()
        if chance < 0.3:
            store.dispatch()
        elif chance < 0.6:
            stepped.flush_log()
            store.dispatch()
        elif chance < 0.75:
            stepped.flush(units=dice.random() < 0.7, keys=dice.random() < 0.5)
        elif chance < 0.8:
            stepped.make_next()
    one.step(f"{_MESSAGES} messages, {store.max_physical_offset} bytes of log, {config.flush_disk_type.name}")
    sent = own_records(config)
    one.demand(stepped.shutdown(), "the store does not shut down in order")
    judge_derived(one, config, files_of(config.root), _EXPECTATIONS)
    camera.disk.close_kept()
    return camera.states, sent


def _judge(one: Round, state: State, sent: Records, live: StoreConfig, depth: int) -> None:
    """Recover a state; and look at states within the recovery."""
    one.case()
    one.fault()
    dice, config = one.dice, replace(live, root=str(state.root), commitlog_path="")
    camera = None
    if depth and dice.random() * _DEEPER < 1:
        camera = Camera(state.root, random.Random(dice.random()), 1, 12)
        camera.acknowledged = lambda: state.acknowledged
    stepped = SteppedStore(config, QuickDisk() if camera is None else camera.disk)
    store = stepped.store
    one.demand(store.max_physical_offset >= state.acknowledged, f"the log ends at {store.max_physical_offset}")
    for damage in store.recovery.damages:
        one.demand(damage.physical_offset >= state.acknowledged, f"damage in what was acknowledged: {damage}")
    one.demand(stepped.shutdown(), "what was recovered does not shut down in order")
    judge_log(one, config, sent, state.acknowledged)
    # Keys of what was not forced, and lost, may stay in the Index, and lead to nothing.
    index = config.flush_disk_type is FlushDiskType.SYNC
    files = files_of(config.root)
    judge_derived(one, config, files, _EXPECTATIONS, index=index)
    if dice.random() * _AGAIN < 1:
        _recover_again(one, config, files, index=index)
    if camera is not None:
        camera.disk.close_kept()
        for interrupted in camera.states:
            one.step("within its recovery")
            _judge(one, interrupted, sent, live, depth - 1)
    shutil.rmtree(state.root)


def _recover_again(one: Round, config: StoreConfig, before: Files, *, index: bool) -> None:
    """What is there after one recovery is there after two; and a store that was recovered takes messages."""
    stepped = SteppedStore(config, QuickDisk())
    report = stepped.store.recovery
    one.demand(report.tail == report.damages == (), f"a second recovery finds damage: {report}")
    grows = one.dice.random() < 0.2
    if grows:
        put(stepped.store, "Later", properties=b"KEYS\x01later\x02")
    one.demand(stepped.shutdown(), "it does not shut down in order after a second recovery")
    after = files_of(config.root)
    if grows:
        judge_derived(one, config, after, _EXPECTATIONS, index=index)
        return
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    one.demand(set(changed) <= {"watermark"}, f"a second recovery changes {changed}")  # that counts its writes
