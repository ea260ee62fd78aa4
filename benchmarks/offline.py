"""Benchmarks the store at rest: generation, rebuild beside Java's recovery, scan through Spark."""

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.broker import PEER, build_peer
from benchmarks.measure import (
    Figure,
    last_line_json,
    peak_worker_memory,
    run,
    run_rmq,
    seconds,
    throughput_figure,
    warm_page_cache,
)
from rmq_formats.spark import session
from rmq_formats.spark.commitlog.batch import CommitLogReader
from rmq_formats.storage.store_files import open_store
from rmq_offline.spark.commitlog_source import CommitLogSource

ROOT = Path(__file__).parents[1]
CEILING_SHARE = 0.8
DISPATCH_COLUMNS = "topic,queue_id,queue_offset,physical_offset,size,tags,store_timestamp"
_ROUNDS = 3
_ROWS = "ceilingRows"  # of a task


def figures(work: Path, messages: int) -> list[Figure]:
    """Measure all figures of the offline part, on one generated store."""
    store = work / "store"
    return [generate(store, messages), *_rebuild(store, work), *_scans(store, messages)]


def generate(store: Path, messages: int) -> Figure:
    """Generate the store of the offline benchmarks."""
    options = ["--body-bytes", "1024", "--topics", "TopicA,TopicB", "--queues", "256", "--keys", "--tags", "--json"]
    report = last_line_json(run_rmq("generate", str(store), "--messages", str(messages), *options))
    rate = report["bytes"] / report["seconds"] / 1e6
    return Figure("`rmq generate`", f"{rate:,.0f} MB/s", "300 MB/s", rate >= 300)


def warm_store(work: Path, messages: int) -> Path:
    """Return the store of the offline benchmarks with the log in the page cache; generate a missing store."""
    store = work / "store"
    if not store.exists():
        generate(store, messages)
    warm_page_cache(store / "commitlog")
    return store


def _java_rebuild(store: Path, work: Path) -> float:
    """Measure bytes a second of Apache's rebuild on hard links of the same CommitLog."""
    build_peer()
    beside = work / "java"
    (beside / "commitlog").mkdir(parents=True)
    for path in (store / "commitlog").iterdir():
        (beside / "commitlog" / path.name).hardlink_to(path)
    output = subprocess.run(["bash", PEER, "rebuild", str(beside)], check=True, stdout=subprocess.PIPE, text=True)
    report = last_line_json(output.stdout)
    shutil.rmtree(beside)
    return float(report["bytes"] / report["rebuild_s"])


def _rebuild(store: Path, work: Path) -> list[Figure]:
    warm_page_cache(store / "commitlog")
    java_rate = _java_rebuild(store, work)
    out = work / "rebuilt"
    out.mkdir()
    peaks: list[int] = []
    with peak_worker_memory(peaks):
        output = run(str(ROOT / "jobs/rebuild.py"), "--store", str(store), "--out", str(out))
    rate = last_line_json(output)["bytes_per_second"]
    shutil.rmtree(out)
    memory = peaks[0] / (1 << 20)
    name = "`jobs/rebuild.py`, ConsumeQueue and Index, local[2]"
    return [
        throughput_figure(name, rate, java_rate, 3, "3 × Java, aim 5 ×"),
        Figure("its largest Python process", f"{memory:,.0f} MiB", "1,024 MiB", memory < 1024),
    ]


def _scans(store: Path, messages: int) -> list[Figure]:
    arguments = [str(store), DISPATCH_COLUMNS, str(messages)]
    report = last_line_json(run("-m", "benchmarks.offline", *arguments))
    few, everything = report["dispatch_s"], report["all_s"]
    rows, most_rows = (messages / statistics.mean(few[name][1:]) for name in ("ours", "ceiling"))
    rate, most = (report["bytes"] / statistics.mean(everything[name][1:]) for name in ("ours", "ceiling"))
    first_rows, first_rate = messages / few["ours"][0], report["bytes"] / everything["ours"][0]
    return [
        Figure(
            "`rmq_commitlog` to `noop`, dispatch columns",
            f"{rows / 1e6:.2f} M rows/s (first run {first_rows / 1e6:.2f})",
            "2 M rows/s, 0.8 of the ceiling",
            rows >= 2e6 and rows >= CEILING_SHARE * most_rows,
            f"{most_rows / 1e6:.2f} M rows/s (Spark's ceiling)",
            rows / most_rows,
        ),
        Figure(
            "the same, all columns with bodies",
            f"{rate / 1e6:,.0f} MB/s (first run {first_rate / 1e6:,.0f})",
            "700 MB/s, 0.8 of the ceiling",
            rate >= 700e6 and rate >= CEILING_SHARE * most,
            f"{most / 1e6:,.0f} MB/s (Spark's ceiling)",
            rate / most,
        ),
    ]


class CeilingReader(CommitLogReader):
    """Reader that repeats the first batch of a task up to the task's number of rows."""

    rows = 0

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one batch many times."""
        batch, remaining = next(super().read(partition)), self.rows
        while remaining:
            piece = batch.slice(0, remaining)
            yield piece
            remaining -= piece.num_rows


class CeilingSource(CommitLogSource):
    """The source ``ceiling``, with schema and tasks of ``rmq_commitlog``, which measures Spark's own work."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options[_ROWS])
        super().__init__({name: value for name, value in options.items() if name.lower() != _ROWS.lower()})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader."""
        reader = CeilingReader(self._options(schema), schema)
        reader.rows = self._rows
        return reader


def main(store: str, dispatch_columns: str, messages: str) -> None:
    """Scan few columns, then all columns by both sources; print one JSON object."""
    spark = session("bench", master="local[2]")
    spark.dataSource.register(CeilingSource)
    few = scans_s(spark, store, int(messages), {"columns": dispatch_columns})
    everything = scans_s(spark, store, int(messages), {})
    spark.stop()
    size = sum(segment.size_bytes for segment in open_store(store).segments)
    print(json.dumps({"dispatch_s": few, "all_s": everything, "bytes": size}))


def scans_s(spark: SparkSession, store: str, messages: int, options: dict[str, str]) -> dict[str, list[float]]:
    """Return the seconds of three scans by each source, in turns.

    During the first, the JVM compiles Spark's generated code, in five to ten seconds of processor time for any log.
    """
    ours = spark.read.format("rmq_commitlog").options(**options).load(store)
    tasks = ours.rdd.getNumPartitions()
    ceiling = spark.read.format("ceiling").options(**options).option(_ROWS, -(-messages // tasks)).load(store)
    seconds_by_source: dict[str, list[float]] = {"ours": [], "ceiling": []}
    for _ in range(_ROUNDS):
        seconds_by_source["ours"].append(_scan_s(ours))
        seconds_by_source["ceiling"].append(_scan_s(ceiling))
    return seconds_by_source


def _scan_s(frame: DataFrame) -> float:
    return seconds(lambda: frame.write.format("noop").mode("overwrite").save())


if __name__ == "__main__":
    main(*sys.argv[1:4])
