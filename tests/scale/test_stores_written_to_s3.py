"""Stores written to an object store: the bytes of a local write; what a kill leaves is told, and the next ends it."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from jobs import export_delta, import_delta
from rmq_formats import Store
from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.storage.segments import PUBLISHING, WRITE_DIRECTORY
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks import object_lease
from rmq_offline.tasks.object_work_area import MANIFEST, ObjectArea
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.findings import Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.write.commitlog import WriteOptions, begin_write, commit_write, finish_killed_write
from tests.conftest import GOLDEN_SETTINGS
from tests.lakehouse.small_stores import plain
from tests.lakehouse.small_stores import write as write_log
from tests.scale.conftest import Bucket
from tests.support.stores.rebuilt_stores import rebuild, small_store
from tests.support.stores.store_files import tree
from tests.support.stores.written_stores import SMALL_DISPATCH, batches_of, dispatch_of, rows, write
from tests.support.torture import rounds

TIME_US = 1_800_000_000_000_000  # else it would be that of the write, and no two logs the same
NEW = rows(
    topic=["New", "Topic1", "New"],
    body=[b"1", b"2" * 3000, b"3" * 3000],
    queue_id=[0, 1, 0],
    tags=["a"] * 3,
    born_timestamp=[TIME_US] * 3,
    store_timestamp=[TIME_US] * 3,
)
PARTS = ("commitlog", "consumequeue", "consumequeue_ext", "index")


def parts(files: dict[str, bytes]) -> dict[str, bytes]:
    """Log, queues and Index of a store, all that a write determines: other files tell the time."""
    return {name: data for name, data in files.items() if name.partition("/")[0] in PARTS}


def faults(store: str) -> dict[str, int]:
    """Findings of a verification with the sizes that these stores have; what no write makes is none."""
    sizes = asdict(SMALL_DISPATCH.sizes) | {"commitlog_file_bytes": 4096, "consumequeue_ext_file_bytes": None}
    counts = verify_store(store, VerifyOptions(**sizes), ProcessRunner(1)).counts
    return {kind.code: count for kind, count in counts.items() if kind.severity is not Severity.INFO}


def run(root: Path | str, *, overwrite: bool = False) -> None:
    write(root, [[NEW.slice(0, 1)], [NEW.slice(1)]], overwrite=overwrite, file_bytes=4096, dispatch=SMALL_DISPATCH)


def put(bucket: Bucket, directory: Path) -> str:
    """A store with its queues and Index, in the bucket."""
    if not directory.exists():
        rebuild(small_store(directory, 12))
    return bucket.upload(directory, "store")


@pytest.mark.long
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_a_store_there_becomes_what_it_becomes_on_a_disk(bucket: Bucket, tmp_path: Path, overwrite: bool) -> None:
    uri = put(bucket, tmp_path / "store")
    for _ in range(2):
        run(uri, overwrite=overwrite)
        run(tmp_path / "store", overwrite=overwrite)
        found = bucket.tree("store")
        assert parts(found) == parts(tree(tmp_path / "store"))
    left = {name.partition("/")[0] for name in found} - set(PARTS)
    assert left - {"config", "checkpoint", "lock"} == {MANIFEST}
    assert faults(uri) == faults(str(tmp_path / "store"))
    assert not overwrite or faults(uri) == {}


@pytest.mark.long
def test_a_new_store_has_the_bytes_of_the_original(
    bucket: Bucket, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    settings, source = GOLDEN_SETTINGS["mixed"], batches_of(golden("mixed") / "store")
    for root in (bucket.uri("store"), tmp_path / "store"):
        write(
            root, [source], file_bytes=settings.commitlog_file_bytes, keep_offsets=True, dispatch=dispatch_of(settings)
        )
    assert parts(bucket.tree("store")) == parts(tree(tmp_path / "store"))
    topics = bucket.tree("store/config")["topics.json"]
    assert b'"topicConfigTable"' in topics


@contextmanager
def watched(on_change: Callable[[str], None]) -> Iterator[None]:
    """Tell the name of each object before it is changed, but for leases, which change as time goes by."""
    told = ObjectArea._translate_errors

    @contextmanager
    def with_call(self: ObjectArea, path: str) -> Iterator[None]:
        if object_lease.DIRECTORY not in path:
            on_change(path.rpartition("/")[2])
        with told(self, path):
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectArea, "_translate_errors", with_call)
        yield


def die_at(at: int, uri: str, overwrite: bool) -> None:
    """Write, and be killed before the ``at``-th change."""
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    with watched(count):
        run(uri, overwrite=overwrite)
    os._exit(0)


@pytest.mark.long
@pytest.mark.torture
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_killed_before_any_change_it_is_old_or_new_or_told(bucket: Bucket, tmp_path: Path, overwrite: bool) -> None:
    uri = put(bucket, tmp_path / "old")
    old = parts(tree(tmp_path / "old"))
    changes: list[str] = []
    with watched(changes.append):
        run(uri, overwrite=overwrite)
    new = parts(bucket.tree("store"))
    bucket.files.delete_dir(f"{bucket.name}/store")
    log = {name: data for name, data in new.items() if name.startswith("commitlog/")}
    noted, ended, *_ = (at for at, name in enumerate(changes) if name == PUBLISHING)  # others are the rebuild's
    places = {noted, noted + 1, ended, ended + 1}
    for at in sorted(places | {random.randrange(len(changes)) for _ in rounds(1)}):
        put(bucket, tmp_path / "old")
        process = get_context("fork").Process(target=die_at, args=(at, uri, overwrite))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        found = parts(bucket.tree("store"))
        if noted < at <= ended:
            with pytest.raises(StoreError, match="a write into this store has not ended"):
                open_store(uri).require_log()
            with pytest.raises(StoreError, match="a write into this store has not ended"):
                faults(uri)
        else:
            open_store(uri).require_log()
            assert found == old if at <= noted else {name: found[name] for name in log} == log
        assert finish_killed_write(uri, ProcessRunner(1)) == (noted < at < len(changes) - 1)
        assert parts(bucket.tree("store")) == (old if at <= noted else new)
        bucket.files.delete_dir(f"{bucket.name}/store")


@pytest.mark.long
def test_of_two_writes_the_later_one_counts_and_one_publishes_at_a_time(bucket: Bucket, tmp_path: Path) -> None:
    uri = put(bucket, tmp_path / "store")
    before = parts(bucket.tree("store"))
    slow = begin_write(WriteOptions(uri, False))
    written = slow.job.write_task([NEW], slow.encoding)
    assert f"{WRITE_DIRECTORY}/write.json" in bucket.tree("store")
    begin_write(WriteOptions(uri, False)).job.abort()
    with pytest.raises(StoreError, match="another write into this store has begun"):
        commit_write(slow, [written], ProcessRunner(1))
    with ObjectArea(uri).lock(uri), pytest.raises(StoreLockedError, match="another write writes there"):
        begin_write(WriteOptions(uri, False))
    found = bucket.tree("store")
    assert parts(found) == before
    assert not [name for name in found if name.startswith(f"{WRITE_DIRECTORY}/{PUBLISHING}")]


@pytest.mark.long
@pytest.mark.spark
def test_a_table_is_imported_there_and_exported_again(bucket: Bucket, tmp_path: Path, spark: SparkSession) -> None:
    def export(store: str, table: str) -> list[Row]:
        given = export_delta.parser().parse_args(["--store", store, "--table", str(tmp_path / table)])
        export_delta.main(export_delta.check(given), spark)
        frame = spark.read.format("delta").load(str(tmp_path / table))
        return frame.drop("size", "msg_id", "physical_offset").orderBy("topic", "queue_offset").collect()

    write_log(tmp_path / "store", plain(30))
    before = export(str(tmp_path / "store"), "table")
    arguments = [
        "--table", str(tmp_path / "table"), "--store", bucket.uri("store"), "--commitlog-file-bytes", "4096",
        "--consumequeue-file-bytes", "400", "--index-slots", "50", "--index-entries", "20", "--delay-levels", "1s 5s",
    ]  # fmt: skip
    given = import_delta.parser().parse_args(arguments)
    import_delta.check(given)
    report, code = import_delta.main(given, spark)
    assert (code, report["messages"]) == (0, 30)
    assert faults(bucket.uri("store")) == {}
    assert export(bucket.uri("store"), "again") == before
    with pytest.raises(StoreError, match="has messages already"):
        import_delta.check(given)


def dies(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_what_a_killed_import_left_is_completed_and_told(bucket: Bucket, tmp_path: Path) -> None:
    uri = put(bucket, tmp_path / "store")
    begun = begin_write(WriteOptions(uri, False, 4096))
    written = begun.job.write_task([NEW], begun.encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectArea, "copy_new", dies)
        with pytest.raises(KeyboardInterrupt):
            commit_write(begun, [written], ProcessRunner(1))
    given = import_delta.parser().parse_args(["--table", "none", "--store", uri, "--mode", "append"])
    with pytest.raises(StoreError, match="an earlier write that was killed has been completed, its messages are in"):
        import_delta.check(given)
    import_delta.check(given)
    assert len(list(Store(uri).messages())) == 12 + 3
