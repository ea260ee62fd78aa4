"""Benchmarks rebuild and verification of other layouts: a DLedger CommitLog beside a classic one, queues in RocksDB."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from benchmarks import offline
from benchmarks.broker import PEER, build_peer
from benchmarks.measure import Figure, run_rmq, seconds, warm_page_cache
from rmq_formats.codecs import paths
from rmq_formats.codecs.dledger import (
    ENTRY_HEAD_BYTES,
    ENTRY_MAGIC,
    FILE_END_BYTES,
    FILE_END_MAGIC,
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    INDEX_UNIT_DTYPE,
    EntryHead,
)
from rmq_formats.codecs.record_layout import RECORD_PHYSICAL_OFFSET_AT
from rmq_formats.kernels import scan as kernel
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.rocksdb import make_rocksdb
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions

MESSAGES: Final = 1_000_000
RUNS: Final = 3  # of each, in turns; the best counts, as others may use the machine
PROCESSOR_RUNS: Final = 9  # of those by processor time
SHARE: Final = 0.8  # of the classic log's rate
_WORD: Final = 4


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure on a separate store; Java's rebuild of that store lasts a minute.

    Args:
        messages: records of the store, at most.
    """
    directory = work / "layouts"
    directory.mkdir(exist_ok=True)
    store = offline.warm_store(directory, min(messages, MESSAGES))
    dledger = work / "dledger"
    if not dledger.exists():
        make_dledger(store, dledger)
    warm_page_cache(dledger / "dledger-n0" / "data")
    run_rmq("rebuild", str(store), "--json")
    run_rmq("rebuild", str(dledger), "--json")
    return [
        *_rates("rebuild", store, dledger, work), *_rates("verify", store, dledger, work),
        _verified_in_turns(store, dledger), _rocksdb(store, work),
    ]  # fmt: skip


def _rates(command: str, store: Path, dledger: Path, work: Path) -> Iterator[Figure]:
    """Compare bytes a second of a command over both logs, in turns."""
    best = {store: 0.0, dledger: 0.0}
    for _ in range(RUNS):
        for root, rate in list(best.items()):
            out = work / "rebuilt"
            options = ["--out", str(out)] if command == "rebuild" else []
            report = json.loads(run_rmq(command, str(root), "--json", *options).splitlines()[-1])
            shutil.rmtree(out, ignore_errors=True)
            best[root] = max(rate, report["bytes"] / report["seconds"])
    ratio = best[dledger] / best[store]
    yield Figure(
        f"`rmq {command}` of a DLedger CommitLog",
        f"{best[dledger] / 1e6:,.0f} MB/s",
        "0.8 of the classic log's",
        ratio >= SHARE,
        f"{best[store] / 1e6:,.0f} MB/s (classic)",
        ratio,
    )


def _verified_in_turns(store: Path, dledger: Path) -> Figure:
    """Compare bytes a processor second of verifications in this process: other work on the machine counts less."""
    best = {store: 0.0, dledger: 0.0}
    for _ in range(PROCESSOR_RUNS):
        for root, rate in list(best.items()):
            begin = time.process_time()
            report = verify_store(str(root), VerifyOptions(), ProcessRunner(1))
            best[root] = max(rate, report.bytes / (time.process_time() - begin))
    ratio = best[dledger] / best[store]
    return Figure(
        "the same on one processor, by processor time",
        f"{best[dledger] / 1e6:,.0f} MB/s",
        "0.8 of the classic log's",
        ratio >= SHARE,
        f"{best[store] / 1e6:,.0f} MB/s (classic)",
        ratio,
    )


def _rocksdb(store: Path, work: Path) -> Figure:
    """Measure a rebuild of queues in RocksDB and of the Index, beside that of Java."""
    rates = []
    for name in ("ours", "java"):
        beside = work / f"rocksdb-{name}"
        (beside / "commitlog").mkdir(parents=True)
        for path in (store / "commitlog").iterdir():
            (beside / "commitlog" / path.name).hardlink_to(path)
        if name == "ours":
            make_rocksdb(beside / "consumequeue", {"default": iter(())})
            report = json.loads(run_rmq("rebuild", str(beside), "--json").splitlines()[-1])
            rates.append(report["bytes"] / report["seconds"])
        else:
            (beside / "abort").touch()
            rates.append(_java(beside, report["bytes"]))
        shutil.rmtree(beside)
    rate, java_rate = rates
    return Figure(
        "`rmq rebuild` of queues in RocksDB, and the Index",
        f"{rate / 1e6:,.0f} MB/s",
        "1.0 × Java",
        rate >= java_rate,
        f"{java_rate / 1e6:,.0f} MB/s",
        rate / java_rate,
    )


def _java(store: Path, log_bytes: int) -> float:
    """Return bytes a second of Java's rebuild, less the time of a start with an empty store."""
    build_peer()
    empty = store.with_name(f"{store.name}-empty")
    empty.mkdir()
    start_s = seconds(lambda: _opened_by_java(empty))
    shutil.rmtree(empty)
    return log_bytes / (seconds(lambda: _opened_by_java(store)) - start_s)


def _opened_by_java(store: Path) -> None:
    subprocess.run(
        ["bash", PEER, "variant-rebuild", str(store), "storeType=defaultRocksDB"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PEER_JAVA_OPTS": "-Dvariant.settle.ms=0"},
    )


def make_dledger(store: Path, root: Path) -> None:
    """Make a store with a DLedger CommitLog of the records of a classic one."""
    data, index = root / "dledger-n0" / "data", root / "dledger-n0" / "index"
    data.mkdir(parents=True)
    index.mkdir()
    shutil.copytree(store / "config", root / "config")
    files = open_store(str(store))
    segments = files.segments
    writer = _Entries(data, segments[0].size_bytes)
    for segment in segments:
        with files.storage.open(segment.path) as file:
            for batch in scan_segment(file, segment.start_offset, segment.size_bytes, data_end=file.data_end()):
                sound = batch.frames[batch.frames[:, kernel.CODE] == kernel.SOUND]
                view = batch.data.data
                for at, size in zip(sound[:, kernel.POSITION].tolist(), sound[:, kernel.SIZE].tolist(), strict=True):
                    writer.append(bytearray(view[at : at + size]))
    writer.close()
    units = np.zeros(len(writer.places), dtype=INDEX_UNIT_DTYPE)
    units["magic"], units["index"] = ENTRY_MAGIC, np.arange(len(units))
    units["pos"], units["size"] = np.array(writer.places, dtype=np.int64).T
    per_file = INDEX_FILE_BYTES // INDEX_UNIT_BYTES
    for begin in range(0, len(units), per_file):
        with (index / paths.segment_name(begin * INDEX_UNIT_BYTES)).open("wb") as out:
            out.write(units[begin : begin + per_file].tobytes())
            out.truncate(INDEX_FILE_BYTES)
    last = len(units) - 1
    (root / "dledger-n0" / "checkpoint").write_text(f"committedIndex={last}\nendIndex={last}\n", "ascii")
    (root / "dledger-n0" / "currterm").write_text("voteLeader=n0\ncurrTerm=0\n", "ascii")


class _Entries:
    """Writes records as entries, in files of one size.

    Attributes:
        places: position and size of each entry.
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory, self._file_bytes = directory, file_bytes
        self._at = self._file_begin = 0
        self._file = self._made()
        self.places: list[tuple[int, int]] = []

    def append(self, record: bytearray) -> None:
        """Append a record, and set the record's physical offset."""
        size = ENTRY_HEAD_BYTES + len(record)
        remaining = self._file_begin + self._file_bytes - self._at
        if size + FILE_END_BYTES > remaining:
            self._file.write(b"".join(word.to_bytes(_WORD, "big", signed=True) for word in (FILE_END_MAGIC, remaining)))
            self._file.close()
            self._at = self._file_begin = self._file_begin + self._file_bytes
            self._file = self._made()
        place = self._at + ENTRY_HEAD_BYTES
        record[RECORD_PHYSICAL_OFFSET_AT : RECORD_PHYSICAL_OFFSET_AT + 8] = place.to_bytes(8, "big")
        head = EntryHead(ENTRY_MAGIC, size, len(self.places), 0, self._at, 0, 0, 0, len(record))
        self._file.write(head.encode() + record)
        self.places.append((self._at, size))
        self._at += size

    def _made(self) -> BinaryIO:
        file = (self._directory / paths.segment_name(self._file_begin)).open("wb", buffering=1 << 20)
        file.truncate(self._file_bytes)
        return file

    def close(self) -> None:
        """Close the last file."""
        self._file.close()
