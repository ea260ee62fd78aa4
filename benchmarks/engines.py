"""Benchmarks engines that read a store as an Arrow dataset, beside the kernels and Arrow buffers alone.

Each engine reads all dispatch columns of each row. Engines take turns, so that other work on the machine slows all.
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
    ways = _ways(source)
    seconds_by_way: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            seconds_by_way[name].append(_seconds(way, messages))
    medians = {name: _medians(rounds[1:]) for name, rounds in seconds_by_way.items()}  # the first is a warm-up
    return [_figure(name, median_seconds, medians[ALONE], messages) for name, median_seconds in medians.items()]


def _ways(source: Records) -> dict[str, Callable[[], int]]:
    """Return the scans, which count the rows."""
    context = datafusion.SessionContext()
    context.register_dataset("source", source)
    query = f"select {COUNTED} from source"
    polars_counts = pl.scan_pyarrow_dataset(source).select(pl.all().count())
    return {
        ALONE: lambda: sum(batch.num_rows for batch in source),
        "DuckDB, from a Python variable": lambda: _duckdb(source, query),
        "Polars, `scan_pyarrow_dataset`": lambda: polars_counts.collect().row(0)[0],
        "DataFusion, `register_dataset`": lambda: next(iter(context.sql(query).to_pydict().values()))[0],
    }


def _duckdb(source: Records, query: str) -> int:  # noqa: ARG001 # the query names it
    with duckdb.connect() as connection:
        ((rows, *_),) = connection.execute(query).fetchall()
    return int(rows)


def _seconds(way: Callable[[], int], messages: int) -> tuple[float, float]:
    """Return the wall-clock seconds and the processor seconds of a scan."""
    wall, processor = time.perf_counter(), time.process_time()
    assert way() == messages
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
