"""``readStream.format("rmq_commitlog")``: every record once, whatever the batches, restarts and deletions."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.read import task
from rmq_formats.scan import splits
from rmq_formats.spark.commitlog.stream import CommitLogStreamReader
from rmq_offline.spark.commitlog_source import CommitLogSource
from tests.support.stores.store_files import flip, write_commitlog

FILE_BYTES = 4096
HOST = Host(bytes([127, 0, 0, 1]), 10911)

COLUMNS = "topic,queue_id,queue_offset,physical_offset,size,record_error"


class Stream:
    """A query over a store, run by Trigger.AvailableNow, that lands in Parquet."""

    def __init__(self, spark: SparkSession, store: Path, work: Path) -> None:
        self.spark, self.store, self.work = spark, store, work

    def run(self, **options: object) -> list[dict[str, Any]]:
        """Run until the end that is there now; the progress of each batch."""
        reader = self.spark.readStream.format("rmq_commitlog").option("columns", COLUMNS)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load(str(self.store))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.work / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.work / "rows"))
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        return [json.loads(progress.json) for progress in query.recentProgress]

    def offsets(self) -> list[int]:
        """Physical offsets that have landed, with repetitions."""
        rows = self.spark.read.parquet(str(self.work / "rows")).select("physical_offset").collect()
        return sorted(row.physical_offset for row in rows)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def stream(spark: SparkSession, store: Path, tmp_path: Path) -> Stream:
    return Stream(spark, store, tmp_path)


def write(store: Path, count: int, first_store_timestamp_ms: int = 1_700_000_000_000) -> list[int]:
    """Write the first ``count`` messages; more of them leave the bytes of the first as they are."""
    messages = [
        MessageToStore(
            topic="Odd" if number % 2 else "Even",
            queue_id=number % 3,
            body=b"%d" % number * (1 + number % 40),
            born_timestamp_ms=first_store_timestamp_ms,
            born_host=HOST,
            store_host=HOST,
        )
        for number in range(count)
    ]
    return write_commitlog(store, messages, FILE_BYTES, first_store_timestamp_ms)


def offset_of(progress: dict[str, Any], which: str) -> int:
    offset = progress["sources"][0][which]
    return int((json.loads(offset) if isinstance(offset, str) else offset)["physicalOffset"])


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"maxBytesPerTrigger": 3000},
        {"maxOffsetsPerTrigger": 37},
        {"maxBytesPerTrigger": 5000, "maxOffsetsPerTrigger": 23},
    ],
    ids=str,
)
@pytest.mark.long
def test_each_record_comes_once_whatever_the_batches_are(stream: Stream, store: Path, limits: dict[str, int]) -> None:
    placed = write(store, 120)
    batches = stream.run(**limits)
    assert stream.offsets() == placed
    sizes = [batch["numInputRows"] for batch in batches if batch["numInputRows"]]
    assert max(sizes) <= limits.get("maxOffsetsPerTrigger", len(placed))
    assert len(sizes) >= len(placed) // limits.get("maxOffsetsPerTrigger", len(placed))
    if "maxBytesPerTrigger" in limits:
        assert len(sizes) >= placed[-1] // limits["maxBytesPerTrigger"]


@pytest.mark.long
def test_a_restart_goes_on_where_it_stopped_and_reports_its_lag(stream: Stream, store: Path) -> None:
    first = write(store, 50)
    progress = stream.run()
    assert offset_of(progress[-1], "endOffset") == offset_of(progress[-1], "latestOffset") > first[-1]
    stream.run()
    assert stream.offsets() == first
    more = write(store, 90)
    stream.run(maxOffsetsPerTrigger=7)
    assert stream.offsets() == more


def test_a_trigger_looks_at_the_log_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def counted(*given: Any) -> int:
        looks.append(last_record_end(*given))
        return looks[-1]

    last_record_end = splits.last_record_end
    monkeypatch.setattr(splits, "last_record_end", counted)
    write(store, 50)
    source = CommitLogSource({"path": str(store)})
    reader = source.streamReader(source.schema())
    begin = reader.initialOffset()
    looks.clear()
    for count in (50, 90):
        write(store, count)
        end = reader.latestOffset(begin, ReadAllAvailable())
        assert end == reader.reportLatestOffset()
        planned = pickle.loads(pickle.dumps(reader)), reader.partitions(begin, end)
        rows = [row for part in planned[1] for batch in planned[0].read(part) for row in batch.to_pylist()]
        assert end["physicalOffset"] == looks[-1] == rows[-1]["physical_offset"] + rows[-1]["size"]
        begin = end
    assert len(looks) == 2


@pytest.mark.long
def test_half_of_a_record_is_not_read_before_it_is_whole(stream: Stream, store: Path) -> None:
    placed = write(store, 9)
    path = store / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[: placed[-1] + 60].ljust(FILE_BYTES, b"\0"))
    stream.run()
    assert stream.offsets() == placed[:-1]
    path.write_bytes(whole)
    stream.run()
    assert stream.offsets() == placed


@pytest.mark.long
def test_a_running_query_follows_the_log(stream: Stream, store: Path) -> None:
    write(store, 5)
    reader = stream.spark.readStream.format("rmq_commitlog").option("columns", COLUMNS).load(str(store))
    query = (
        reader.writeStream.format("parquet")
        .option("checkpointLocation", str(stream.work / "checkpoint"))
        .start(str(stream.work / "rows"))
    )
    try:
        query.processAllAvailable()
        for count in (30, 31, 100):
            placed = write(store, count)
            query.processAllAvailable()
            assert stream.offsets() == placed
    finally:
        query.stop()


@pytest.mark.long
def test_a_deleted_segment_is_an_error_that_names_what_is_gone(stream: Stream, store: Path) -> None:
    write(store, 60)
    stream.run(maxOffsetsPerTrigger=100)
    before = stream.offsets()
    placed = write(store, 120)
    files = sorted(path.name for path in (store / "commitlog").iterdir())
    held = max(name for name in files if int(name) <= before[-1])
    end = int(files[files.index(held) + 2])  # the file where the stream stands and the next
    for name in files[: files.index(held) + 2]:
        (store / "commitlog" / name).unlink()
    with pytest.raises(StreamingQueryException, match=rf"bytes \d+ to {end} of the CommitLog were deleted"):
        stream.run()
    assert stream.offsets() == before
    stream.run(failOnDataLoss="false")
    rows = stream.spark.read.parquet(str(stream.work / "rows"))
    gaps = rows.where("record_error is not null").collect()
    assert [row.record_error for row in gaps] == ["segment deleted"]
    assert gaps[0].physical_offset + gaps[0].size == end
    landed = [row.physical_offset for row in rows.where("record_error is null").collect()]
    assert sorted(landed) == before + [offset for offset in placed if offset >= end]


@pytest.mark.long
def test_a_checkpoint_of_another_store_is_refused(stream: Stream, store: Path) -> None:
    write(store, 30)
    stream.run()
    shutil.rmtree(store)
    write(store, 40, first_store_timestamp_ms=1_800_000_000_000)
    with pytest.raises(StreamingQueryException, match="a checkpoint of another store"):
        stream.run()


def test_a_store_that_was_made_anew_at_its_path_is_refused(store: Path) -> None:
    write(store, 10)
    source = CommitLogSource({"path": str(store)})
    reader = source.streamReader(source.schema())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    write(store, 60)  # the same log, longer
    reader = source.streamReader(source.schema())
    assert reader.latestOffset(end, ReadAllAvailable()) != end
    former = {name: value for name, value in end.items() if name != "crc32"}
    assert reader.latestOffset(former, ReadAllAvailable()) != end  # of a version without checksums, as ever
    shutil.rmtree(store)
    bodies = [("Odd", b"%d" % number * 9) for number in range(60)]
    messages = [
        MessageToStore(topic=topic, queue_id=0, body=body, born_timestamp_ms=1, born_host=HOST, store_host=HOST)
        for topic, body in bodies
    ]
    write_commitlog(store, messages, FILE_BYTES, 1_700_000_000_000)  # its first record of the same time
    reader = source.streamReader(source.schema())
    with pytest.raises(StoreError, match="it is a checkpoint of another store"):
        reader.latestOffset(end, ReadAllAvailable())


@pytest.mark.long
def test_a_log_that_ends_before_the_checkpoint_is_an_error(stream: Stream, store: Path) -> None:
    write(store, 100)
    stream.run()
    shutil.rmtree(store)
    write(store, 5)
    with pytest.raises(StreamingQueryException, match="the CommitLog ends at"):
        stream.run()


@pytest.mark.parametrize("left", [30, 59], ids=["a file less", "a record less"])
def test_a_batch_that_was_planned_before_the_log_lost_its_tail_is_an_error(store: Path, left: int) -> None:
    write(store, 60)
    source = CommitLogSource({"path": str(store)})
    planner = source.streamReader(source.schema())
    begin = planner.initialOffset()
    end = planner.latestOffset(begin, ReadAllAvailable())
    shutil.rmtree(store)
    placed = write(store, left)
    with pytest.raises(StoreError, match=f"the CommitLog ends at .*, before {end['physicalOffset']}, where the batch"):
        source.streamReader(source.schema()).partitions(begin, end)
    lenient = CommitLogSource({"path": str(store), "failOnDataLoss": "false"})
    restarted = lenient.streamReader(lenient.schema())
    batches = [batch for part in restarted.partitions(begin, end) for batch in restarted.read(part)]
    assert [offset for batch in batches for offset in batch["physical_offset"].to_pylist()] == placed


def test_options_choose_rows_and_where_to_begin(stream: Stream, store: Path) -> None:
    placed = write(store, 40)
    stream.run(subscribe="Odd", startingPhysicalOffset=placed[10])
    assert stream.offsets() == placed[11::2]


@pytest.mark.parametrize(
    "later",
    [
        {"startingTimestamp": "1700000000035"},
        {"startingPhysicalOffset": "100000"},
        {"subscribe": "Odd,Even", "startingOffsets": '{"Odd": {"0": 100, "1": 100, "2": 100}}'},
        {"startingOffsets": "latest"},
    ],
)
def test_a_restart_with_another_start_passes_over_nothing(store: Path, later: dict[str, str]) -> None:
    placed = write(store, 20)
    begin, rows = batches_from(reader_of(store, startingTimestamp="1700000000005"), None)
    assert [offset for offset, _ in rows] == placed[5:]
    placed = write(store, 40)
    begin, rows = batches_from(reader_of(store, failOnDataLoss="false", **later), begin)
    assert [offset for offset, _ in rows] == placed[20:]
    placed = write(store, 45)
    del begin["starting"]  # as a former version wrote it: the options hold
    assert batches_from(reader_of(store, startingTimestamp="1700000000042"), begin)[1][0][0] == placed[42]


def test_a_start_holds_for_what_comes_later_too(store: Path) -> None:
    write(store, 6)
    reader = reader_of(store, subscribe="Odd", startingOffsets='{"Odd": {"0": 5}}', failOnDataLoss="false")
    begin, _ = batches_from(reader, None)
    placed = write(store, 45)
    _, rows = batches_from(reader_of(store, subscribe="Odd"), begin)
    assert [offset for offset, _ in rows] == [
        placed[number] for number in range(6, 45) if number % 2 and (number % 3 or number >= 33)
    ]


def reader_of(store: Path, **options: str) -> CommitLogStreamReader:
    source = CommitLogSource({"path": str(store), **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, CommitLogStreamReader)
    return reader


@pytest.mark.long
def test_latest_begins_with_what_comes_after(stream: Stream, store: Path) -> None:
    write(store, 10)
    stream.run(startingOffsets="latest")
    placed = write(store, 25)
    stream.run(startingOffsets="latest")
    assert stream.offsets() == placed[10:]


@pytest.mark.long
def test_damage_never_stops_a_stream(stream: Stream, store: Path) -> None:
    placed = write(store, 60)
    flip(store, placed[20] + 4, FILE_BYTES)
    stream.run(maxOffsetsPerTrigger=10)  # two batches end where the damage begins
    assert stream.offsets() == placed
    rows = stream.spark.read.parquet(str(stream.work / "rows"))
    assert [row.physical_offset for row in rows.where("record_error is not null").collect()] == [placed[20]]


@pytest.mark.parametrize("limit", [None, 40])
def test_damage_where_a_batch_ended_is_a_row_of_the_next(store: Path, limit: int | None) -> None:
    placed = write(store, 12)
    path = store / "commitlog" / f"{0:020d}"
    whole = bytearray(path.read_bytes())
    whole[placed[6] : placed[8]] = b"\xff" * (placed[8] - placed[6])
    path.write_bytes(bytes(whole[: placed[8]]).ljust(FILE_BYTES, b"\0"))
    source = CommitLogSource({"path": str(store), "maxBytesPerTrigger": str(limit or FILE_BYTES)})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, CommitLogStreamReader)
    begin, rows = batches_from(reader, reader.initialOffset())
    assert [offset for offset, _ in rows] == placed[:6], "nothing tells yet whether somebody is writing there"
    path.write_bytes(whole)
    _, rows = batches_from(reader, begin)
    assert rows[0] == (placed[6], placed[8] - placed[6]), "the damage, once"
    assert [offset for offset, _ in rows[1:]] == placed[8:]


def batches_from(
    reader: CommitLogStreamReader, begin: dict[str, Any] | None
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Where the micro batches that are there now end, and physical offset and size of each of their rows."""
    rows: list[tuple[int, int]] = []
    if begin is None:
        begin = reader.initialOffset()
    while (end := reader.latestOffset(begin, reader.getDefaultReadLimit())) != begin:
        for part in reader.partitions(begin, end):
            for batch in reader.read(part):
                rows += zip(batch.column("physical_offset").to_pylist(), batch.column("size").to_pylist(), strict=True)
        begin = end
    return begin, rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingTimestamp": "2026-01-01"}, "a stream has no end"),
        ({"subscribe": "Odd", "endingOffsets": '{"Odd": {"0": 3}}'}, "a stream has no end"),
        ({"accessPath": "index", "key": "k"}, "option accessPath cannot be index for a stream"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger"),
    ],
)
def test_mistakes_are_named(stream: Stream, store: Path, options: dict[str, str], message: str) -> None:
    write(store, 3)
    with pytest.raises(Exception, match=message):
        stream.run(**options)


def test_a_queue_file_that_is_deleted_meanwhile_is_no_gap_of_the_log(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, 10)
    source = CommitLogSource({"path": str(store), "failOnDataLoss": "false"})
    reader = source.streamReader(source.schema())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    partitions = reader.partitions(reader.initialOffset(), end)

    def fail(*_: object) -> Any:
        raise StoreNotFoundError(f"{store}/consumequeue/T/0/00000000000000000000: no such file")

    monkeypatch.setattr(task, "read_task", fail)
    with pytest.raises(StoreNotFoundError, match="consumequeue"):
        list(reader.read(partitions[0]))
    shutil.rmtree(store / "commitlog")
    assert [batch.num_rows for batch in reader.read(partitions[0])] == [1]
