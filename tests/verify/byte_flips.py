"""Flips of every byte of derived files: the comparisons alone, over what one verification has read of the log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.spill import read_partition
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.consumequeue import QueueCheck, QueueFile, QueueName
from rmq_offline.verify.consumequeue_ext import ExtTable
from rmq_offline.verify.findings import FindingList, Severity
from rmq_offline.verify.index_entries import IndexInput
from rmq_offline.verify.index_file import IndexCheck
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.log_facts import LogFacts
from rmq_offline.verify.phases import index_files as job_index
from rmq_offline.verify.phases import queues as job_queues
from rmq_offline.verify.phases.index_files import IndexFileTask, SpilledKeys
from rmq_offline.verify.phases.plan import VerifyOptions

Bytes = NDArray[np.uint8]


@dataclass
class Caught(ProcessRunner):
    """Runs tasks here, and keeps what those of the second batch were given, and what they read."""

    facts: LogFacts | None = None
    sizes: StoreSizes | None = None
    keys: SpilledKeys | None = None
    tasks: list[IndexFileTask] = field(default_factory=list)
    records: dict[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict)
    parallelism: int = 1

    def map(self, function: Any, arguments: Sequence[Any], on_done: Callable[[Any], None] | None = None) -> list[Any]:
        if isinstance(function, partial) and "split_count" in function.keywords:
            work, self.sizes = function.keywords["work"], function.keywords["sizes"]
            self.facts, self.keys = job_queues.read_facts(work), SpilledKeys(work)
            self.keys.read(0, self.keys.count)  # holds them from now on: these logs are one or two splits
            self.tasks = [task for task in arguments if isinstance(task, IndexFileTask)]
            queues: dict[tuple[str, int], list[NDArray[np.int64]]] = {}
            for number in range(function.keywords["split_count"]):
                path = work.path(f"spill/units-{number:06d}.arrow")
                for partition in (task for task in arguments if isinstance(task, int)):
                    for topic, queue_id, rows in read_partition(path, partition):
                        queues.setdefault((topic, queue_id), []).append(rows)
            self.records = {name: np.concatenate(parts) for name, parts in queues.items()}
        return super().map(function, arguments, on_done)


def caught(store: Path, monkeypatch: Any) -> Caught:
    """Verify a sound store, and keep what it was compared with."""
    monkeypatch.setattr(job_index, "CACHED_SPLITS", 1000)
    runner = Caught()
    assert verify_store(str(store), VerifyOptions(), runner).is_clean
    return runner


def faults(found: FindingList) -> int:
    """Faults that are no mere information."""
    return sum(count for kind, count in found.counts.items() if kind.severity is not Severity.INFO)


def index_check(runner: Caught, task: IndexFileTask, data: Bytes) -> Callable[[], int]:
    """A function that judges an IndexFile's bytes, as they are when it is called."""
    assert runner.sizes is not None
    assert runner.keys is not None
    assert runner.facts is not None
    sizes, keys, facts = runner.sizes, runner.keys, runner.facts
    previous_end = job_index._previous_end(task)

    def read(offset: int, size_bytes: int) -> Bytes:
        part = np.zeros(size_bytes, dtype=np.uint8)
        got = data[offset : offset + size_bytes]
        part[: len(got)] = got
        return part

    def judge() -> int:
        used = np.flatnonzero(data)
        found = FindingList()
        index = IndexInput(
            task.path,
            len(data),
            int(used[-1]) + 1 if len(used) else 0,
            read,
            sizes.index_slots,
            sizes.index_entries,
            task.previous_path is None,
            task.is_last,
            previous_end,
        )
        IndexCheck(index, keys, facts, found, found).run()
        return faults(found)

    return judge


def queue_check(
    runner: Caught, name: tuple[str, int], files: dict[Path, Bytes], ext_files: dict[Path, Bytes]
) -> Callable[[], int]:
    """A function that judges a queue's bytes, as they are when it is called."""
    assert runner.sizes is not None
    assert runner.facts is not None
    sizes, facts, records = runner.sizes, runner.facts, runner.records[name]

    def judge() -> int:
        found, ext = FindingList(), None
        if ext_files:
            ext = ExtTable(*name, found)
            for path, data in ext_files.items():
                ext.add_file(str(path), int(path.name), data, is_last=path == list(ext_files)[-1])
            ext.freeze()
        check = QueueCheck(QueueName(*name), records, facts, found, found, ext)
        own = [QueueFile(str(path), int(path.name), len(data), lambda data=data: data) for path, data in files.items()]
        check.check(own, sizes.consumequeue_file_bytes)
        return faults(found)

    return judge


def unfound(data: Bytes, judge: Callable[[], int], positions: Sequence[int] | range) -> list[tuple[int, int]]:
    """Positions and masks of the flips that a check does not find; masks go round."""
    missed = []
    for at in positions:
        mask = (0x01, 0xFF, 0x80, 0x10)[at % 4]
        data[at] ^= mask
        if not judge():
            missed.append((at, mask))
        data[at] ^= mask
    return missed
