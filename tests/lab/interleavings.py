"""The part ``interleavings``: the steps of a store's threads in any order, on a disk that fails and loses its power.

After each step what is acknowledged must be forced, and what is read must be what was sent.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path

from rmq_core.store.config import FlushDiskType, StoreConfig
from tests.lab.faulty_disk import FaultyDisk
from tests.lab.judged_store import Expectations, files_of, judge_derived, own_records
from tests.lab.model import Model
from tests.lab.rounds import Round
from tests.lab.stepped_store import SteppedStore, put_some
from tests.lab.stepped_timers import SteppedTimers, judge_timers
from tests.store.small_stores import NOW_MS, QuickDisk, config_of

_STEPS = 60
_FILES_GO_AT_ONCE = 0.5
_PATIENCE_S = 60.0
_TURNS_AT_END = 5  # of timers: what was rolled, or waits to be forced, comes in a later one
_LATER_MS = 10 * 365 * 86_400_000  # by then every file is too old
_EXPECTATIONS = Expectations()


def play(one: Round) -> None:
    """Play a schedule to its end."""
    Schedule(one).play()


class Schedule:
    """One schedule: a store, its disk, and what it must hold."""

    def __init__(self, one: Round) -> None:
        dice = one.dice
        self._one, self._dice = one, dice
        self._cleans, self._deletes, has_ext = dice.random() < 0.25, dice.random() < 0.2, dice.random() < 0.15
        self._master = None
        self._rates = dice.choice([(0.0, 0.0), (0.0, 0.0), (0.05, 0.0), (0.0, 0.03), (0.03, 0.02)])
        self._config = config_of(
            one.work / "store",
            flush_disk_type=dice.choice(list(FlushDiskType)),
            preallocate=dice.random() < 0.5,
            commitlog_file_bytes=4096,
            consumequeue_file_bytes=100,
            index_slots=20,
            index_entries=40,
            consumequeue_ext_enabled=has_ext,
            append_crc_property=dice.random() < 0.2,
        )
        if dice.random() < 0.3:
            self._config = replace(self._config, slave=True)
            self._deletes = False  # a slave's topics are its master's
            (one.work / "master").mkdir()
            self._master = SteppedStore(
                replace(self._config, root=str(one.work / "master"), commitlog_path="", slave=False), QuickDisk()
            )
        is_plain = not (self._cleans or self._deletes or has_ext or self._master)
        self._timers = SteppedTimers() if is_plain and dice.random() < 0.2 else None
        self._number = 0
        self._lives = 0
        self._whole_to = 0  # of a slave: physical offset below which it had all records, some of which it may have lost
        self._model = Model()
        self._open(self._config)
        self._open_timers()
        names = (
            ["timers"] * (self._timers is not None)
            + ["cleans"] * self._cleans
            + ["deletes"] * self._deletes
            + ["ext"] * has_ext
        )
        names += ["slave"] * (self._master is not None)
        one.step(f"{self._config.flush_disk_type.name}, fails at {self._rates} {' '.join(names)}")

    def _open(self, config: StoreConfig) -> None:
        Path(config.root).mkdir(exist_ok=True)
        self._config = config
        self._disk = FaultyDisk(Path(config.root), random.Random(self._dice.random()))
        self._stepped = SteppedStore(config, self._disk)
        self._disk.lack_rate, self._disk.break_rate = self._rates

    def play(self) -> None:
        """Take all steps, and shut down at the end."""
        steps = [
            (30, self._put if self._master is None else self._replicate),
            (14, self._dispatch), (10, self._flush), (10, self._force), (4, self._make_next),
            (4, self._remove), (1, self._kill), (1, self._cut), (1, self._restart), (2, self._heal),
        ]  # fmt: skip
        if self._timers is not None:
            steps += [(12, self._put_timed), (24, self._run_timers), (4, self._save_timers)]
        steps += [(2, self._clean)] * self._cleans + [(1, self._delete)] * self._deletes
        weights, actions = zip(*steps, strict=True)
        for action in self._dice.choices(actions, weights, k=_STEPS):
            faults = len(self._disk.faults)
            action()
            for fault in self._disk.faults[faults:]:
                self._one.fault()
                self._one.step(f"    {fault}")
            self._one.case()
            self._judge()
        self._rates = self._disk.lack_rate, self._disk.break_rate = 0.0, 0.0  # for good: what waits comes in the end
        self._restart()
        if self._timers is not None:
            self._end_timers(self._timers)
            self._timers.end()
        self._abandon()
        self._disk.close_kept()
        if self._master is not None:
            self._master.abandon()

    # --- timers -------------------------------------------------------------------------
    def _open_timers(self) -> None:
        if self._timers is not None:
            rates, self._disk.lack_rate, self._disk.break_rate = self._rates, 0.0, 0.0
            self._timers.open(self._stepped.store)
            self._disk.lack_rate, self._disk.break_rate = rates

    def _put_timed(self) -> None:
        assert self._timers is not None
        store = self._stepped.store
        before = store.max_physical_offset
        result = self._timers.put(self._dice)
        self._one.step(f"put a timer message: {result.status.name} {before}..{store.max_physical_offset}")
        self._model.note(self._one, store, result, before)

    def _run_timers(self) -> None:
        """Time passes, and timers work."""
        assert self._timers is not None
        before = self._stepped.store.max_physical_offset
        self._timers.now_ms += self._dice.choice([0, 300, 2500])
        more = [self._timers.step() for _ in range(self._dice.randrange(1, 12))]
        self._know_since(before)
        self._one.step(f"timers: {len(more)} steps, {before}..{self._stepped.store.max_physical_offset}")
        judge_timers(self._one, self._model.sent, self._timers.now_ms, all_due=False)

    def _know_since(self, begin: int) -> None:
        """Know the records that the store's own users have appended."""
        store, file_bytes = self._stepped.store, self._config.commitlog_file_bytes
        while begin < store.max_physical_offset:
            record = store.record(begin)
            if record is None:  # a BLANK
                begin += file_bytes - begin % file_bytes
            else:
                self._model.take(begin, bytes(record))
                begin += len(record)

    def _save_timers(self) -> None:
        assert self._timers is not None
        self._one.step("timers write a checkpoint")
        self._timers.save()

    def _end_timers(self, timers: SteppedTimers) -> None:
        """In the end each message has come, once."""
        before = self._stepped.store.max_physical_offset
        for _ in range(_TURNS_AT_END):
            timers.deliver_all(self._one)
            self._stepped.flush_log()
            self._stepped.store.dispatch()
        self._know_since(before)
        judge_timers(self._one, self._model.sent, timers.now_ms, all_due=True)

    # --- steps --------------------------------------------------------------------------
    def _put(self) -> None:
        store = self._stepped.store
        before = store.max_physical_offset
        result = put_some(store, self._dice, self._number)
        self._number += 1
        self._one.step(f"put: {result.status.name} {before}..{store.max_physical_offset}")
        self._model.note(self._one, store, result, before)

    def _replicate(self) -> None:
        """The master takes messages, and pushes bytes that begin and end anywhere."""
        assert self._master is not None
        master, store = self._master.store, self._stepped.store
        while master.max_physical_offset < store.max_physical_offset + 400:
            put_some(master, self._dice, self._number)
            self._number += 1
        begin = store.max_physical_offset
        stretch = master.read_log_range(begin, self._dice.choice([1, 100, 700, 4096]))
        assert stretch is not None
        taken = store.append_to_commit_log(begin, stretch)
        end = store.max_physical_offset
        self._one.step(f"replicated: {taken} {begin}..{end} of {len(stretch)}")
        if taken:
            self._one.demand(end == begin + len(stretch), f"took {len(stretch)} bytes at {begin}, and ends at {end}")
        self._know_master(end)

    def _know_master(self, end: int) -> None:
        """Know the master's records up to a physical offset, without those that a loss of power took."""
        assert self._master is not None
        for physical_offset, record in own_records(self._master.store.config):
            if self._whole_to <= physical_offset and physical_offset + len(record) <= end:
                self._model.take(physical_offset, record)
                self._whole_to = physical_offset + len(record)

    def _dispatch(self) -> None:
        self._one.step(f"dispatch: {self._stepped.store.dispatch()} {self._stepped.store.dispatched_offset}")

    def _flush(self) -> None:
        self._one.step(f"flush: {self._stepped.flush_log()} {self._stepped.store.flushed_offset}")

    def _force(self) -> None:
        units, keys = self._dice.random() < 0.7, self._dice.random() < 0.5
        self._one.step(f"force units={units} keys={keys}: {self._stepped.flush(units=units, keys=keys)}")

    def _make_next(self) -> None:
        self._one.step("make the next file")
        self._stepped.make_next()

    def _remove(self) -> None:
        self._one.step("remove files")
        self._stepped.remove()

    def _clean(self) -> None:
        report = self._stepped.store.clean(NOW_MS + _LATER_MS, manually=True)
        self._model.cleaned_to = self._stepped.store.min_physical_offset
        self._one.step(f"clean: {report}")

    def _delete(self) -> None:
        store, rates = self._stepped.store, (self._disk.lack_rate, self._disk.break_rate)
        if store.fault is not None or not store.topics():
            return
        self._disk.lack_rate = self._disk.break_rate = 0.0  # who deletes is told of an error, and tries again
        topic = self._dice.choice(sorted(store.topics()))
        end = store.max_physical_offset
        self._one.step(f"delete {topic[:20]} at {end}")
        store.delete_topics([topic])
        if self._dice.random() < _FILES_GO_AT_ONCE:  # else with the next deletion, or where a queue is made anew
            store.remove_deleted(_PATIENCE_S)
        self._disk.lack_rate, self._disk.break_rate = rates
        self._model.forget_topic(topic)

    def _heal(self) -> None:
        """Space and descriptors are there again, or lack again."""
        self._disk.lack_rate = self._rates[0] if self._disk.lack_rate == 0 else 0.0
        self._one.step(f"lacks at {self._disk.lack_rate}")

    def _kill(self) -> None:
        """The process dies; what was written is there."""
        acknowledged = self._stepped.store.flushed_offset
        self._one.step(f"killed, {acknowledged} acknowledged")
        self._abandon()
        self._reopen(self._disk, lost=False, acknowledged=acknowledged)

    def _cut(self) -> None:
        """The power is lost."""
        acknowledged = self._stepped.store.flushed_offset
        lose = self._dice.choice([0.3, 1.0, 1.0])
        self._lives += 1
        target = self._one.work / f"store.{self._lives}"
        self._disk.picture(target, self._dice, lose=lose)
        self._one.fault()
        self._one.step(f"power lost, {lose} of what was not forced; {acknowledged} acknowledged")
        self._abandon()
        self._disk.close_kept()
        shutil.rmtree(self._config.root)
        self._reopen(
            None,
            lost=True,
            acknowledged=acknowledged,
            config=replace(self._config, root=str(target), commitlog_path=""),
        )

    def _abandon(self) -> None:
        if self._timers is not None:
            self._timers.abandon()
        self._stepped.abandon()

    def _restart(self) -> None:
        """A shutdown in order, or one that says that it is not."""
        if self._timers is not None:
            self._timers.close()
        acknowledged = self._stepped.store.flushed_offset
        is_complete = self._stepped.shutdown()
        self._one.step(f"shut down: {is_complete}")
        if is_complete and not (self._cleans or self._deletes or self._config.consumequeue_ext_enabled):
            judge_derived(self._one, self._config, files_of(self._config.root), _EXPECTATIONS, index=self._keeps_index)
        self._reopen(self._disk, lost=False, acknowledged=acknowledged)

    @property
    def _keeps_index(self) -> bool:
        return not (self._lives and self._config.flush_disk_type is FlushDiskType.ASYNC)

    def _reopen(
        self, disk: FaultyDisk | None, *, lost: bool, acknowledged: int, config: StoreConfig | None = None
    ) -> None:
        """Open what is left, and judge it: nothing is lost but, with the power, what was not acknowledged."""
        one = self._one
        if disk is None:
            assert config is not None
            self._open(config)
        else:
            disk.lack_rate = disk.break_rate = 0.0
            disk.evict()
            self._stepped = SteppedStore(self._config, disk)
            disk.lack_rate, disk.break_rate = self._rates
        store = self._stepped.store
        low = store.min_physical_offset
        there = [item for item in own_records(self._config) if item[0] >= low]
        if self._master is not None:  # a push that failed may have left whole records
            self._know_master(store.max_physical_offset)
        wanted = dict(self._model.sent)
        for offset, record in there:
            one.demand(wanted.get(offset) == record, f"the record at {offset} was never sent")
        kept = {
            offset
            for offset, record in wanted.items()
            if offset >= low and (not lost or offset + len(record) <= acknowledged)
        }
        missing = kept - {offset for offset, _ in there}
        one.demand(not missing, f"lost: {sorted(missing)}, with {acknowledged} acknowledged")
        if lost:
            self._whole_to = store.max_physical_offset
            queued = {message.physical_offset for own in self._model.messages.values() for message in own.values()}
            self._model = _left(Model.of(there, self._model.cleaned_to), queued)
        self._open_timers()

    # --- what must hold -----------------------------------------------------------------
    def _judge(self) -> None:
        one, store = self._one, self._stepped.store
        dispatched, flushed, end = store.dispatched_offset, store.flushed_offset, store.max_physical_offset
        one.demand(flushed <= end, f"flushed to {flushed} of {end}")
        readable = max((at + len(record) for at, record in self._model.sent if at < dispatched), default=0)
        one.demand(readable <= end, f"dispatched to {dispatched}, readable to {readable} of {end}")
        if self._config.flush_disk_type is FlushDiskType.SYNC:
            one.demand(readable <= flushed, f"readable to {readable}, and forced to {flushed}")
        if store.fault is not None:
            one.demand("fault" in store.refusals, "the disk failed, and messages are taken")
        if not store.refusals.keys() & {"dispatch"}:
            self._model.judge_reads(one, store, self._dice)
        if self._dice.random() < 0.1:
            complete = not self._cleans and not self._lives and not store.refusals
            self._model.judge_query(one, store, self._dice, complete=complete)


def _left(model: Model, queued: set[int]) -> Model:
    """A model without the messages that had been deleted with their topics."""
    for own in model.messages.values():
        for offset in [offset for offset, message in own.items() if message.physical_offset not in queued]:
            del own[offset]
    return model
