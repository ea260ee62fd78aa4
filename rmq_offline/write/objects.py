"""A write of records into a store in an object store, which has no renames, no locks and no files that grow.

Tasks upload their pieces. The commit, on the driver, lays the new log out on a disk of its own, uploads its files
below ``.rmq-write/new``, notes in ``publish.json`` what is to be replaced, and has the object store copy each object
to its name, whole. While the note exists, readers are refused (``require_readable``), and the next write copies on.
Then ``dispatch.json`` replaces the note until queues and Index are rebuilt; the log is complete and readable.
"""

import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from rmq_formats.arrow.encode import EncodeOptions
from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.storage.segments import PUBLISHING, WRITE_DIRECTORY
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.object_work_area import MANIFEST, ObjectArea, check_name
from rmq_offline.tasks.origin import InterruptedRunPolicy, add_seal, check_origin
from rmq_offline.tasks.runner import Runner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.work_files import write_text
from rmq_offline.write.job import NOTE, check_number
from rmq_offline.write.piece import Piece, WrittenTask, write_pieces
from rmq_offline.write.topics import TOPICS

_DISPATCH: Final = "dispatch.json"
_WORK: Final = "write"  # what the lease's owner does, for messages
_AT_ONCE: Final = 4  # transfers in flight: each is of a file of megabytes or more
_ENDINGS: Final = (".records", ".rows")
# Beside a log, what refers to it: queues of the old log beside the new one would lead to other messages.
_DERIVED_FILES: Final = (MANIFEST, "checkpoint", "abort")
_DERIVED: Final = ("index", "consumequeue", "consumequeue_ext")


@dataclass(frozen=True, slots=True)
class ObjectJob:
    """Handle of a write that has begun, passed to its tasks; see ``WriteJob``."""

    root: str
    number: str
    now_ms: int

    @property
    def area(self) -> ObjectArea:
        """Objects of all writes into the store."""
        return ObjectArea(self.root, WRITE_DIRECTORY)

    def write_task(self, batches: Iterable[pa.RecordBatch], options: EncodeOptions) -> WrittenTask:
        """Write the pieces of one task on a disk of the task's machine, and upload them; see ``write_pieces``."""
        area = self.area
        with tempfile.TemporaryDirectory(prefix="rmq-write-") as directory:
            written = write_pieces(batches, Path(directory), options)
            pieces = tuple(self._upload_piece(area, piece) for piece in written.pieces)
        return replace(written, pieces=pieces)

    def _upload_piece(self, area: ObjectArea, piece: Piece) -> Piece:
        name = f"pieces-{self.number}/{Path(piece.path).name}"
        for ending in _ENDINGS:
            area.upload(name + ending, Path(piece.path + ending))
        return replace(piece, path=name)

    def check_own(self) -> None:
        """Raise StoreError if another write has begun since."""
        try:
            text = self.area.read_text(NOTE)
        except StoreNotFoundError:
            text = ""
        check_number(self.root, text, self.number)

    def abort(self) -> None:
        """Remove what was written, unless another write has begun since, or the publication has."""
        area = self.area
        try:
            self.check_own()
        except StoreError:
            return
        if not area.exists(PUBLISHING) and not area.exists(_DISPATCH):
            area.remove()


def begin_object_job(root: str) -> ObjectJob:
    """Begin a write, after ``end_killed_object_write``; what others have begun is cleared.

    Raises:
        StoreLockedError: another write, or a rebuild, is being published.
        StoreError: the object store cannot be written to.
    """
    job = ObjectJob(root, uuid.uuid4().hex, int(time.time() * 1000))
    area = job.area
    with area.lease(_WORK):
        if area.exists(PUBLISHING) or area.exists(_DISPATCH):  # of one that was killed since
            raise StoreError(f"{root}: another write into this store has begun; run again")
        area.delete_below(f"{root}/{WRITE_DIRECTORY}")
        write_text(area, NOTE, json.dumps({"number": job.number}))
    return job


def fetch_pieces(area: ObjectArea, tasks: Sequence[WrittenTask], directory: Path) -> list[WrittenTask]:
    """Download the pieces of tasks into a directory."""
    pieces = [piece for task in tasks for piece in task.pieces]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        local_pieces = pool.map(partial(_fetch_piece, area, directory), pieces)
        return [replace(task, pieces=tuple(islice(local_pieces, len(task.pieces)))) for task in tasks]


def _fetch_piece(area: ObjectArea, directory: Path, piece: Piece) -> Piece:
    path = str(directory / Path(piece.path).name)
    for ending in _ENDINGS:
        area.download(piece.path + ending, Path(path + ending))
    return replace(piece, path=path)


def publish_objects(
    area: ObjectArea, directory: Path, retired: Sequence[str], dispatch: RebuildOptions | None, *, overwrite: bool
) -> None:
    """Upload the files of a directory, and replace the objects of the same names; under the lease.

    Args:
        retired: names of the old log's objects that are deleted.
        dispatch: options of the rebuild of queues and Index; None rebuilds neither.
        overwrite: whether all objects that refer to the old log are deleted, too.
    """
    files = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: area.upload(f"new/{name}", files[name]), files))
    note = {
        "retired": [*(_DERIVED_FILES if overwrite else ()), *retired],
        "directories": list(_DERIVED if overwrite else ()),
        "files": list(files),
        "dispatch": None if dispatch is None else _dispatch_note(dispatch),
    }
    note = add_seal(note, area.target)
    write_text(area, PUBLISHING, json.dumps(note))
    _copy_all(area, note)


def _dispatch_note(dispatch: RebuildOptions) -> dict[str, Any]:
    """Return the options of ``dispatch_objects``: a write leaves no topics out, and has no batch queues."""
    return {
        "consumequeue": dispatch.consumequeue, "index": dispatch.index, "sizes": asdict(dispatch.sizes),
        "written": sorted(dispatch.written_queues),
    }  # fmt: skip


def _copy_all(area: ObjectArea, note: Mapping[str, Any]) -> None:
    """Replace objects; a note of the dispatch then replaces the note of the publication."""
    for name in note["retired"]:
        if name not in note["files"]:
            area.delete(f"{area.target}/{name}")
    for name in note["directories"]:
        area.delete_below(f"{area.target}/{name}")
    area.copy_new(note["files"])
    if note["dispatch"] is not None:
        write_text(area, _DISPATCH, json.dumps(add_seal(note["dispatch"], area.target)))
    area.delete(area.path(PUBLISHING))


def end_killed_object_write(
    root: str, runner: Runner, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE
) -> bool:
    """Complete a write that was killed during its publication; False if there is none.

    Raises:
        StoreLockedError: another process publishes or completes the write.
        StoreError: the note cannot be read or is foreign, or the object store cannot be written.
    """
    area = ObjectArea(root, WRITE_DIRECTORY)
    is_publishing = area.exists(PUBLISHING)
    if is_publishing:
        with area.lease(_WORK):
            if area.exists(PUBLISHING):
                _copy_all(area, _read_note(area, PUBLISHING, _check_publication, leftover))
    return dispatch_objects(root, runner, leftover) or is_publishing


def dispatch_objects(root: str, runner: Runner, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE) -> bool:
    """Rebuild queues and Index of a killed write, and delete its files; False if the write had not got that far.

    The rebuild takes the store's lease itself.
    """
    area = ObjectArea(root, WRITE_DIRECTORY)
    is_left = area.exists(_DISPATCH)
    if is_left:
        note = _read_note(area, _DISPATCH, _dispatch_options, leftover)
        rebuild_store(root, None, _dispatch_options(note), runner, leftover=leftover)
        area.delete(area.path(_DISPATCH))
    return is_left


def _dispatch_options(note: Mapping[str, Any]) -> RebuildOptions:
    sizes = msgspec.convert(note["sizes"], StoreSizes)
    written = msgspec.convert(note.get("written", []), frozenset[tuple[str, int]])
    return RebuildOptions(bool(note["consumequeue"]), bool(note["index"]), sizes, written_queues=written)


def _check_publication(note: Mapping[str, Any]) -> None:
    """Refuse names that no write publishes. Raises ValueError, TypeError, KeyError."""
    for name in note["retired"]:
        if name not in _DERIVED_FILES:
            _check_log_file(name)
    for name in note["directories"]:
        if name not in _DERIVED:
            raise ValueError(f"names {name!r}, which is never published here")
    for name in note["files"]:
        if name != f"config/{TOPICS}":
            _check_log_file(name)
    if note["dispatch"] is not None:
        _dispatch_options(note["dispatch"])


def _check_log_file(name: object) -> None:
    check_name(name, {"commitlog"}, depth=2)
    if paths.parse_segment_name(str(name).removeprefix("commitlog/")) is None:
        raise ValueError(f"names {name!r}, which is never published here")


def _read_note(
    area: ObjectArea, name: str, check: Callable[[Mapping[str, Any]], object], leftover: InterruptedRunPolicy
) -> dict[str, Any]:
    path = area.path(name)
    if leftover is InterruptedRunPolicy.START_ANEW:
        raise StoreError(
            f"{path}: an interrupted write, which may hold the only copy of the log. Give --resume to complete it, or "
            f"move {area.target}/{WRITE_DIRECTORY} out of the store"
        )
    try:
        note = json.loads(area.read_text(name))
        if not isinstance(note, dict):
            raise TypeError("it is no object")
        check(note)
    except (ValueError, TypeError, KeyError, RecursionError, msgspec.ValidationError) as error:
        raise StoreError(
            f"{path}: not a valid publication record ({error}). Move {area.target}/{WRITE_DIRECTORY} out of the store, "
            "but keep it: it may hold the only copy of some files."
        ) from error
    check_origin(note, area.target, path, "an interrupted write", leftover)
    return note
