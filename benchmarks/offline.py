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
from benchmarks.measure import Figure, peak_worker_memory, run, run_rmq, seconds, warm_page_cache
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
    return [
        generate(store, messages),
        *_rebuild(store, work),
        *_scans(store, messages),
    ]


def generate(store: Path, messages: int) -> Figure:
    """Generate the store that all is measured on."""
    report = json.loads(
        run_rmq(
            "generate",
            str(store),
            "--messages",
            str(messages),
            "--body-bytes",
            "1024",
            "--topics",
            "TopicA,TopicB",
            "--queues",
            "256",
            "--keys",
            "--tags",
            "--json",
        ).splitlines()[-1]
    )
    rate = report["bytes"] / report["seconds"] / 1e6
    return Figure("`rmq generate`", f"{rate:,.0f} MB/s", "300 MB/s", rate >= 300)


def warm_store(work: Path, messages: int) -> Path:
    """Return the store that all is measured on, made where it is not there, its log in the page cache."""
    store = work / "store"
    if not store.exists():
        generate(store, messages)
    warm_page_cache(store / "commitlog")
    return store


def _java_rebuild(store: Path, work: Path) -> float:
    """Measure bytes a second of Apache's rebuild: its store opened on the same CommitLog, linked beside."""
    build_peer()
    beside = work / "java"
    (beside / "commitlog").mkdir(parents=True)
    for path in (store / "commitlog").iterdir():
        (beside / "commitlog" / path.name).hardlink_to(path)
    output = subprocess.run(["bash", PEER, "rebuild", str(beside)], check=True, stdout=subprocess.PIPE, text=True)
    report = json.loads(output.stdout.splitlines()[-1])
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
    report = json.loads(output.splitlines()[-1])
    shutil.rmtree(out)
    rate = report["bytes_per_second"]
    memory = peaks[0] / (1 << 20)
    return [
        Figure(
            "`jobs/rebuild.py`, ConsumeQueue and Index, local[2]", f"{rate / 1e6:,.0f} MB/s", "3 × Java, aim 5 ×",
            rate >= 3 * java_rate, f"{java_rate / 1e6:,.0f} MB/s", rate / java_rate,
        ),
        Figure("its largest Python process", f"{memory:,.0f} MiB", "1,024 MiB", memory < 1024),
    ]  # fmt: skip


def _scans(store: Path, messages: int) -> list[Figure]:
    arguments = [str(store), DISPATCH_COLUMNS, str(messages)]
    report = json.loads(run("-m", "benchmarks.offline", *arguments).splitlines()[-1])
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
    """Reader that reads the first batch of a task, and repeats the batch up to the task's number of rows."""

    rows = 0

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one batch many times."""
        batch, remaining = next(super().read(partition)), self.rows
        while remaining:
            piece = batch.slice(0, remaining)
            yield piece
            remaining -= piece.num_rows


class CeilingSource(CommitLogSource):
    """The source ``ceiling``, of the same schema and tasks as ``rmq_commitlog``, which repeats one batch a task.

    What is left is Spark's own work, the most that any Python source can reach.
    """

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
    """Scan few columns, then all columns, each by both sources; print one JSON object."""
    spark = session("bench", master="local[2]")
    spark.dataSource.register(CeilingSource)
    few = scans_s(spark, store, int(messages), {"columns": dispatch_columns})
    everything = scans_s(spark, store, int(messages), {})
    spark.stop()
    segments = open_store(store).segments
    size = sum(segment.size_bytes for segment in segments)
    print(json.dumps({"dispatch_s": few, "all_s": everything, "bytes": size}))


def scans_s(spark: SparkSession, store: str, messages: int, options: dict[str, str]) -> dict[str, list[float]]:
    """Return the seconds of three scans by each source, in turns: the first, then the others, whose mean counts.

    During the first, the JVM compiles what Spark generated for it, which costs five to ten seconds of processor time
    however long the log is.
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
