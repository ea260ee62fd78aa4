"""Benchmarks rebuild and verification of other layouts: a DLedger CommitLog beside a classic one, queues in RocksDB."""

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from benchmarks import offline
from benchmarks.broker import PEER, build_peer
from benchmarks.measure import Figure, last_line_json, run_rmq, seconds, throughput_figure, warm_page_cache
from rmq_formats.codecs import dledger, paths
from rmq_formats.codecs.record_layout import RECORD_PHYSICAL_OFFSET_AT
from rmq_formats.kernels import scan as kernel
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.rocksdb import make_rocksdb
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions

MESSAGES: Final = 1_000_000
RUNS: Final = 3  # in turns; the best counts, as other work may use the machine
PROCESSOR_RUNS: Final = 9  # likewise, by processor time
SHARE: Final = 0.8  # of the classic log's rate


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure on a separate store of at most so many messages; Java's rebuild lasts a minute."""
    directory = work / "layouts"
    directory.mkdir(exist_ok=True)
    store = offline.warm_store(directory, min(messages, MESSAGES))
    dledger = work / "dledger"
    if not dledger.exists():
        make_dledger(store, dledger)
    warm_page_cache(dledger / "dledger-n0" / "data")
    run_rmq("rebuild", str(store), "--json")
    run_rmq("rebuild", str(dledger), "--json")
    commands = []
    for command in ("rebuild", "verify"):
        measure_rate = partial(_command_rate, command, work / "rebuilt")
        commands.append(_compare(f"`rmq {command}` of a DLedger CommitLog", store, dledger, RUNS, measure_rate))
    name = "the same on one processor, by processor time"
    return [*commands, _compare(name, store, dledger, PROCESSOR_RUNS, _processor_rate), _rocksdb(store, work)]


def _compare(name: str, store: Path, dledger: Path, runs: int, measure_rate: Callable[[Path], float]) -> Figure:
    """Compare the best rates of both logs, measured in turns."""
    best = {store: 0.0, dledger: 0.0}
    for _ in range(runs):
        for root, rate in list(best.items()):
            best[root] = max(rate, measure_rate(root))
    return throughput_figure(name, best[dledger], best[store], SHARE, f"{SHARE} of the classic log's", " (classic)")


def _command_rate(command: str, out: Path, root: Path) -> float:
    options = ["--out", str(out)] if command == "rebuild" else []
    report = last_line_json(run_rmq(command, str(root), "--json", *options))
    shutil.rmtree(out, ignore_errors=True)
    return float(report["bytes"] / report["seconds"])


def _processor_rate(root: Path) -> float:
    """Return bytes a processor second of a verification in this process."""
    begin = time.process_time()
    report = verify_store(str(root), VerifyOptions(), ProcessRunner(1))
    return report.bytes / (time.process_time() - begin)


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
            report = last_line_json(run_rmq("rebuild", str(beside), "--json"))
            rates.append(report["bytes"] / report["seconds"])
        else:
            (beside / "abort").touch()
            rates.append(_java(beside, report["bytes"]))
        shutil.rmtree(beside)
    ours, java = rates
    return throughput_figure("`rmq rebuild` of queues in RocksDB, and the Index", ours, java, 1.0, "1.0 × Java")


def _java(store: Path, log_bytes: int) -> float:
    """Return bytes a second of Java's rebuild, less the time of a start with an empty store."""
    build_peer()
    empty = store.with_name(f"{store.name}-empty")
    empty.mkdir()
    start_s = seconds(lambda: _open_with_java(empty))
    shutil.rmtree(empty)
    return log_bytes / (seconds(lambda: _open_with_java(store)) - start_s)


def _open_with_java(store: Path) -> None:
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
    units = np.zeros(len(writer.places), dtype=dledger.INDEX_UNIT_DTYPE)
    units["magic"], units["index"] = dledger.ENTRY_MAGIC, np.arange(len(units))
    units["pos"], units["size"] = np.array(writer.places, dtype=np.int64).T
    per_file = dledger.INDEX_FILE_BYTES // dledger.INDEX_UNIT_BYTES
    for begin in range(0, len(units), per_file):
        with (index / paths.segment_name(begin * dledger.INDEX_UNIT_BYTES)).open("wb") as out:
            out.write(units[begin : begin + per_file].tobytes())
            out.truncate(dledger.INDEX_FILE_BYTES)
    last = len(units) - 1
    (root / "dledger-n0" / "checkpoint").write_text(f"committedIndex={last}\nendIndex={last}\n", "ascii")
    (root / "dledger-n0" / "currterm").write_text("voteLeader=n0\ncurrTerm=0\n", "ascii")


class _Entries:
    """Writer of records as entries, in files of one size; ``places`` has position and size of each entry."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory, self._file_bytes = directory, file_bytes
        self._at = self._file_begin = 0
        self._file = self._create_file()
        self.places: list[tuple[int, int]] = []

    def append(self, record: bytearray) -> None:
        """Append a record, and set the record's physical offset."""
        size = dledger.ENTRY_HEAD_BYTES + len(record)
        remaining = self._file_begin + self._file_bytes - self._at
        if size + dledger.FILE_END_BYTES > remaining:
            self._file.write(struct.pack(">ii", dledger.FILE_END_MAGIC, remaining))
            self._file.close()
            self._at = self._file_begin = self._file_begin + self._file_bytes
            self._file = self._create_file()
        place = self._at + dledger.ENTRY_HEAD_BYTES
        record[RECORD_PHYSICAL_OFFSET_AT : RECORD_PHYSICAL_OFFSET_AT + 8] = place.to_bytes(8, "big")
        head = dledger.EntryHead(dledger.ENTRY_MAGIC, size, len(self.places), 0, self._at, 0, 0, 0, len(record))
        self._file.write(head.encode() + record)
        self.places.append((self._at, size))
        self._at += size

    def _create_file(self) -> BinaryIO:
        file = (self._directory / paths.segment_name(self._file_begin)).open("wb", buffering=1 << 20)
        file.truncate(self._file_bytes)
        return file

    def close(self) -> None:
        """Close the last file."""
        self._file.close()
