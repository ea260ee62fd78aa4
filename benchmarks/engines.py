"""Benchmarks engines that read a store as an Arrow dataset, beside the kernels and Arrow buffers alone.

Each reads all dispatch columns of each row. They take turns, so that what else the machine does falls on all.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import datafusion
import duckdb
import polars as pl

from benchmarks.measure import Figure
from benchmarks.offline import DISPATCH_COLUMNS, warm_store
from rmq_formats import Store
from rmq_formats.records import Records

ROUNDS: Final = 5
ALONE: Final = "kernels and Arrow buffers"
TARGET: Final = 4e6  # rows a second
COUNTED: Final = ", ".join(f"count({name})" for name in DISPATCH_COLUMNS.split(","))


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure the scan of the dispatch columns by each engine."""
    source = Store(warm_store(work, messages)).arrow(DISPATCH_COLUMNS.split(","))
    ways = _ways(source, messages)
    seconds_by_way: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            seconds_by_way[name].append(_seconds(way))
    medians = {name: _medians(rounds[1:]) for name, rounds in seconds_by_way.items()}  # the first loads what is lazy
    return [_figure(name, median_seconds, medians[ALONE], messages) for name, median_seconds in medians.items()]


def _ways(source: Records, messages: int) -> dict[str, Callable[[], None]]:
    context = datafusion.SessionContext()
    context.register_dataset("source", source)

    def kernels() -> None:
        assert sum(batch.num_rows for batch in source) == messages

    def duck() -> None:
        assert _duckdb(source) == messages

    def polars() -> None:
        assert pl.scan_pyarrow_dataset(source).select(pl.all().count()).collect().row(0)[0] == messages

    def fusion() -> None:
        assert context.sql(f"select {COUNTED} from source").to_pydict() is not None

    return {
        ALONE: kernels,
        "DuckDB, from a Python variable": duck,
        "Polars, `scan_pyarrow_dataset`": polars,
        "DataFusion, `register_dataset`": fusion,
    }


def _duckdb(source: Records) -> int:  # noqa: ARG001 # the query names it
    """Count what the variable has, which DuckDB finds by its name."""
    with duckdb.connect() as connection:
        ((rows, *_),) = connection.execute(f"select {COUNTED} from source").fetchall()
    return int(rows)


def _seconds(way: Callable[[], None]) -> tuple[float, float]:
    """Return the wall-clock seconds and the processor seconds of a scan."""
    wall, processor = time.perf_counter(), time.process_time()
    way()
    return time.perf_counter() - wall, time.process_time() - processor


def _medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    walls, processors = zip(*rounds, strict=True)
    return statistics.median(walls), statistics.median(processors)


def _figure(name: str, median_seconds: tuple[float, float], alone: tuple[float, float], messages: int) -> Figure:
    rate, alone_rate = messages / median_seconds[0], messages / alone[0]
    is_aim = name.startswith("DuckDB")
    return Figure(
        f"dispatch columns: {name}",
        f"{rate / 1e6:.2f} M rows/s, {median_seconds[1]:.2f} processor s",
        f"{TARGET / 1e6:.0f} M rows/s" if is_aim else "",
        rate >= TARGET or not is_aim,
        "" if name == ALONE else f"kernels: {alone_rate / 1e6:.2f} M rows/s",
        None if name == ALONE else rate / alone_rate,
    )
