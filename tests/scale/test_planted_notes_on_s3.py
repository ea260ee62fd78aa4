"""Notes that somebody has planted in a store in a bucket: nothing of what they name outside is touched."""

import json
from typing import Any

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.tasks.job_steps import run_alone
from rmq_offline.tasks.object_work_area import ObjectArea
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.write.commitlog import finish_killed_write
from tests.scale.conftest import Bucket

WORDS = [InterruptedRunPolicy.REFUSE, InterruptedRunPolicy.RESUME]
OUT = ["../other/file", "other", "/other", "consumequeue/../../other/file", "config", "", ".", "commitlog/x", "lock"]
SIZES = {
    "commitlog_file_bytes": 4096, "consumequeue_file_bytes": 400, "consumequeue_ext_file_bytes": 0, "index_slots": 50,
    "index_entries": 20, "delay_levels_ms": [1000], "tags_from": 0, "batchconsumequeue_file_bytes": 920,
}  # fmt: skip


def put(bucket: Bucket, name: str, value: Any) -> None:
    path = f"{bucket.name}/{name}"
    with bucket.files.open_output_stream(path) as stream:
        stream.write(value if isinstance(value, bytes) else json.dumps(value).encode())


def planted(bucket: Bucket, objects: dict[str, Any]) -> str:
    for name in (
        "other/file",
        "store/consumequeue/T/0/0",
        "store/lock",
        "store/commitlog/x",
        "store/config/topics.json",
    ):
        put(bucket, name, b"the only copy")
    for name, value in objects.items():
        put(bucket, f"store/{name}", value)
    return bucket.uri("store")


def rebuild_note(directories: list[Any], tasks: list[Any], files: Any = None) -> dict[str, Any]:
    note: dict[str, Any] = {".rmq-rebuild/publish.json": {"directories": directories, "tasks": tasks}}
    return note if files is None else note | {".rmq-rebuild/files/t": files}


REBUILDS = {
    **{f"replaces {name!r}": rebuild_note([name], []) for name in OUT},
    **{f"task {name!r}": rebuild_note(["consumequeue"], [name]) for name in ("../x", "a/b", "", "..", 1)},
    **{f"writes {name!r}": rebuild_note(["consumequeue"], ["t"], {name: 1}) for name in OUT},
    "no sizes": rebuild_note([], ["t"], ["consumequeue/x"]),
}


@pytest.mark.long
def test_a_rebuild_follows_no_planted_name(bucket: Bucket) -> None:
    uri = planted(bucket, {})
    for name, objects in REBUILDS.items():
        planted(bucket, objects)
        before = bucket.tree("")
        for word in WORDS:
            with pytest.raises(
                StoreError, match=r"not a valid (publication record|list of written files)|has no origin"
            ):
                run_alone(ObjectArea(uri).finish_publishing(word), ProcessRunner(1))
        assert bucket.tree("") == before, name
        ObjectArea(uri).clear([])


def write_note(**members: Any) -> dict[str, Any]:
    note = {"retired": [], "directories": [], "files": [], "dispatch": None}
    return {".rmq-write/publish.json": note | members}


WRITES = {
    **{f"deletes {name!r}": write_note(retired=[name]) for name in OUT},
    **{f"clears {name!r}": write_note(directories=[name]) for name in [*OUT, "commitlog"]},
    **{f"writes {name!r}": write_note(files=[name]) for name in OUT},
    "dispatches what is none": write_note(
        dispatch={"consumequeue": True, "index": True, "sizes": {"index_slots": "x"}}
    ),
    "a dispatch that is none": {".rmq-write/dispatch.json": {"consumequeue": True}},
}


@pytest.mark.long
def test_a_write_follows_no_planted_name(bucket: Bucket) -> None:
    uri = planted(bucket, {})
    for name, objects in WRITES.items():
        planted(bucket, objects)
        before = parts(bucket)
        with pytest.raises(StoreError):
            finish_killed_write(uri, ProcessRunner(1), InterruptedRunPolicy.RESUME)
        assert parts(bucket) == before, name
        ObjectArea(uri, ".rmq-write").clear([])
    planted(bucket, write_note())
    for word in (InterruptedRunPolicy.REFUSE, InterruptedRunPolicy.START_ANEW):
        with pytest.raises(StoreError):
            finish_killed_write(uri, ProcessRunner(1), word)


def parts(bucket: Bucket) -> dict[str, bytes]:
    return {name: data for name, data in bucket.tree("").items() if ".rmq-rebuild-leases" not in name}


@pytest.mark.parametrize(
    "objects",
    [
        write_note(retired=["checkpoint"], directories=["index"]),
        {".rmq-write/dispatch.json": {"consumequeue": True, "index": True, "sizes": SIZES}},
    ],
    ids=["publication", "dispatch"],
)
def test_a_note_that_nobody_signed_needs_a_word(bucket: Bucket, objects: dict[str, Any]) -> None:
    uri = planted(bucket, objects)
    before = parts(bucket)
    with pytest.raises(StoreError, match=r"has no origin: .* Give --resume"):
        finish_killed_write(uri, ProcessRunner(1))
    assert parts(bucket) == before


def test_a_rebuild_s_note_started_anew_is_deleted(bucket: Bucket) -> None:
    uri = planted(bucket, rebuild_note(["../other"], []))
    run_alone(ObjectArea(uri).finish_publishing(InterruptedRunPolicy.START_ANEW), ProcessRunner(1))
    assert bucket.tree("other")["file"] == bucket.tree("store")["consumequeue/T/0/0"] == b"the only copy"
    assert not ObjectArea(uri).exists("publish.json")
