"""A rebuild into an object store: the local rebuild's bytes, and a manifest that is put last."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError, StoreLayoutError, StoreLockedError
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.spark.runner import SparkRunner
from rmq_offline.tasks.object_work_area import MANIFEST, ObjectArea
from rmq_offline.tasks.runner import ProcessRunner, Runner
from rmq_offline.tasks.work_files import WORK_DIRECTORY
from tests.conftest import GOLDEN_SETTINGS
from tests.scale.conftest import Bucket
from tests.support.stores.rebuilt_stores import SMALL, Splits, golden_options, rebuild, small_store
from tests.support.stores.store_files import tree

OLD = {"consumequeue/Old/3/" + "0" * 20: b"q" * 400, "index/20200101000000000": b"i" * 640, "notes.txt": b"mine"}


def published(bucket: Bucket, path: str) -> dict[str, bytes]:
    """What a rebuild put there; nothing but that and the manifest, which lists it."""
    found = bucket.tree(path)
    manifest = json.loads(found.pop(MANIFEST))
    assert manifest["files"] == {name: len(data) for name, data in found.items() if name != "notes.txt"}
    return found


def put_old(bucket: Bucket, directory: Path) -> str:
    """A target with a finished rebuild of another time in it."""
    for path, data in OLD.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    files = {path: len(data) for path, data in OLD.items() if path != "notes.txt"}
    (directory / MANIFEST).write_text(json.dumps({"directories": ["consumequeue", "index"], "files": files}))
    return bucket.upload(directory, "out")


@pytest.mark.parametrize("name", ["mixed", "exotic_crc"])
@pytest.mark.long
def test_the_bytes_are_those_of_a_local_rebuild(
    bucket: Bucket, golden: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    store, options = golden(name) / "store", golden_options(GOLDEN_SETTINGS[name])
    rebuild(store, tmp_path / "local", options)
    report = rebuild_store(str(store), bucket.uri("out"), options, Splits(3, ProcessRunner(2)))
    assert report.finding_counts == {}
    assert published(bucket, "out") == tree(tmp_path / "local")


@pytest.mark.parametrize("name", ["consumequeue/notes.txt", "consumequeue/Old/3/notes.txt", "index/notes.txt"])
def test_objects_that_nobody_knows_are_named_and_stay(bucket: Bucket, tmp_path: Path, name: str) -> None:
    store = small_store(tmp_path / "store")
    out = put_old(bucket, tmp_path / "old")
    with bucket.files.open_output_stream(f"{bucket.name}/out/{name}") as target:
        target.write(b"mine")
    before = bucket.tree("out")
    with pytest.raises(StoreLayoutError, match="move it out of the store first") as caught:
        rebuild_store(str(store), out, SMALL, ProcessRunner(1))
    assert name in str(caught.value)
    assert bucket.tree("out") == before


@pytest.mark.spark
@pytest.mark.long
def test_on_spark_from_one_object_store_into_itself(
    bucket: Bucket, golden: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    store, options = golden("mixed") / "store", golden_options(GOLDEN_SETTINGS["mixed"])
    uri = bucket.upload(store / "commitlog", "store/commitlog").replace("/commitlog", "", 1)
    rebuild(store, tmp_path / "local", options)
    rebuild_store(uri, None, options, Splits(3, SparkRunner(spark)))
    found = bucket.tree("store")
    log = {name: data for name, data in found.items() if name.startswith("commitlog/")}
    assert log == {f"commitlog/{name}": data for name, data in tree(store / "commitlog").items()}
    assert {name: data for name, data in found.items() if name not in {*log, MANIFEST}} == tree(tmp_path / "local")


@pytest.mark.long
def test_what_was_there_is_replaced_and_the_rest_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    store, out = small_store(tmp_path / "store", 60), put_old(bucket, tmp_path / "old")
    rebuild(store, tmp_path / "local")
    rebuild_store(str(store), out, SMALL, Splits(4))
    assert published(bucket, "out") == tree(tmp_path / "local") | {"notes.txt": b"mine"}


class Waves(ProcessRunner):
    """LeaseObjectStore the number of tasks of each wave."""

    def __init__(self) -> None:
        super().__init__(1)
        self.tasks: list[int] = []

    def map(self, function: Any, arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        self.tasks.append(len(arguments))
        return super().map(function, arguments, on_done)


def test_a_task_copies_the_objects_that_a_task_has_written(bucket: Bucket, tmp_path: Path) -> None:
    store, runner = small_store(tmp_path / "store", 60), Waves()
    report = rebuild_store(str(store), bucket.uri("out"), SMALL, runner)
    written, copied = runner.tasks[-2:]
    assert written == copied < report.files == len(published(bucket, "out"))


def die_at(at: int, store: Path, out: str, runner: Runner) -> None:
    """Rebuild, and be killed before the ``at``-th change of the object store."""
    told, seen = ObjectArea._translate_errors, 0

    @contextmanager
    def counted(self: ObjectArea, path: str) -> Iterator[None]:
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        with told(self, path):
            yield

    ObjectArea._translate_errors = counted  # type: ignore[method-assign]
    rebuild_store(str(store), out, SMALL, runner)
    os._exit(0)


@pytest.mark.long
def test_killed_before_any_change_it_is_old_or_told_to_be_unfinished(bucket: Bucket, tmp_path: Path) -> None:
    store, out = small_store(tmp_path / "store", 40), put_old(bucket, tmp_path / "old")
    rebuild(store, tmp_path / "local")
    new = tree(tmp_path / "local") | {"notes.txt": b"mine"}
    at, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        at += 1 + at // 4
        process = get_context("fork").Process(target=die_at, args=(at, store, out, Splits(2)))
        process.start()
        process.join()
        code = process.exitcode
        found = {name: data for name, data in bucket.tree("out").items() if not name.startswith(WORK_DIRECTORY)}
        if MANIFEST in found:
            del found[MANIFEST]
            assert found in (OLD, new)
        if code == -signal.SIGKILL and at % 2:  # else the next one goes on with what this one left
            rebuild_store(str(store), out, SMALL, Splits(2))
            assert published(bucket, "out") == new
            bucket.files.delete_dir(f"{bucket.name}/out")
            put_old(bucket, tmp_path / "old")
    assert (code, at > 30) == (0, True)
    assert published(bucket, "out") == new


@pytest.mark.long
def test_of_two_rebuilds_into_one_target_one_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    store, out = small_store(tmp_path / "store", 40), put_old(bucket, tmp_path / "old")
    before = bucket.tree("out")
    with ObjectArea(out).lock(str(store)) as check_lease:
        with pytest.raises(StoreLockedError, match="another rebuild writes there"):
            rebuild_store(str(store), out, SMALL, Splits(2))
        check_lease()
    assert bucket.tree("out") == before
    rebuild(store, tmp_path / "local")
    rebuild_store(str(store), out, SMALL, Splits(2))
    assert published(bucket, "out") == tree(tmp_path / "local") | {"notes.txt": b"mine"}


def test_a_bucket_that_is_not_there_is_told_in_a_line(bucket: Bucket, tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 10)
    with pytest.raises(StoreError, match="cannot be written") as told:
        rebuild_store(str(store), bucket.uri("out").replace(bucket.name, "nobody-s"), SMALL, Splits(2))
    assert "\n" not in str(told.value)
