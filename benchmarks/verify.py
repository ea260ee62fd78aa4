"""Benchmarks the verification of a whole store, the cost of its checksums, and how a rebuild grows with its log."""

import shutil
from pathlib import Path
from typing import Final

from benchmarks import offline
from benchmarks.measure import Figure, last_line_json, run_rmq, seconds
from rmq_formats.scan.splits import plan_splits, split_frames
from rmq_formats.storage.store_files import open_store

QUARTER: Final = 4  # the smaller log has a quarter of the files


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure on the store of the offline part; create a missing store."""
    store = offline.warm_store(work, messages)
    return [*_verify(store), _growth(store, work)]


def _verify(store: Path) -> list[Figure]:
    run_rmq("rebuild", str(store), "--json")
    report = last_line_json(run_rmq("verify", str(store), "--json"))
    rate = report["bytes"] / report["seconds"]
    phases = ", ".join(f"{phase} {phase_s:.2f} s" for phase, phase_s in report["phases"].items())
    share = checksum_seconds(store) / (report["phases"]["scan"] + report["phases"]["compare"])
    return [
        Figure(f"`rmq verify` of everything ({phases})", f"{rate / 1e6:,.0f} MB/s", "1,000 MB/s", rate >= 1e9),
        Figure("share of checksums in it", f"{share:.0%}", "15 %", share < 0.15),
    ]


def checksum_seconds(store: Path) -> float:
    """Measure the cost of checksums on two processors: a scan with them less one without, on one, halved."""
    files = open_store(str(store))
    splits = plan_splits(files.storage, files.segments)

    def scan(verify_crc: bool) -> None:
        for split in splits:
            with files.storage.open(split.path) as file:
                for _ in split_frames(file, split, verify_crc=verify_crc):
                    pass

    return max(0.0, (seconds(lambda: scan(True)) - seconds(lambda: scan(False))) / 2)


def _growth(store: Path, work: Path) -> Figure:
    """Compare the seconds a byte of a whole log with those of its first quarter; the better of two runs each."""
    files = sorted((store / "commitlog").iterdir())
    small = work / "quarter"
    (small / "commitlog").mkdir(parents=True)
    for path in files[: -(-len(files) // QUARTER)]:
        (small / "commitlog" / path.name).hardlink_to(path)
    _rebuild(small, work)  # a new checkout compiles its kernels here
    small_bytes, small_cost = min(_rebuild(small, work), _rebuild(small, work))
    whole_bytes, whole_cost = min(_rebuild(store, work), _rebuild(store, work))
    shutil.rmtree(small)
    growth = whole_cost / small_cost - 1
    name = f"`rmq rebuild`, time a byte, from {small_bytes / 1e9:.1f} to {whole_bytes / 1e9:.1f} GB"
    return Figure(name, f"{growth:+.0%}", "at most +10 %", growth <= 0.10)


def _rebuild(store: Path, work: Path) -> tuple[int, float]:
    """Rebuild a log; return its bytes, and the seconds that a byte took."""
    out = work / "growth"
    report = last_line_json(run_rmq("rebuild", str(store), "--out", str(out), "--json"))
    shutil.rmtree(out)
    return report["bytes"], report["seconds"] / report["bytes"]
