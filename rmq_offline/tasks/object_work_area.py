"""Work area of a rebuild in an object store, which has neither renames nor a disk that tasks could share.

Tasks write each file on their own disk and upload it below ``.rmq-rebuild/`` as one object, which exists
whole or not at all. At the end the object store copies the new objects to their names, and an object that
lists them, ``rebuild-manifest.json``, is written last. What a rebuild replaces stays untouched until all new
objects exist; from then on until the manifest exists, the target must not be read. A run after a kill
resumes.

There may be ten million objects, a file of each queue: each task notes those that it has written, they are copied in
tasks again, and nothing holds a list of all.
"""

import json
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.storage.segments import ArrowStorage, open_storage, read_range, request_all
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks import object_lease
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch
from rmq_offline.tasks.origin import InterruptedRunPolicy, add_seal, check_origin
from rmq_offline.tasks.publish import REBUILT
from rmq_offline.tasks.unknown_files import refuse_unknown_files
from rmq_offline.tasks.work_files import WORK_DIRECTORY, write_text

MANIFEST: Final = "rebuild-manifest.json"
_NOTE: Final = "publish.json"
_FILES: Final = "files"  # notes of the objects that each task has written
_CHUNK_BYTES: Final = 4 << 20
_FLUSH_BYTES: Final = 64 << 20  # pyarrow uploads in the background, and buffers what is not sent yet


class ObjectArea:
    """Work area of objects below ``<target>/.rmq-rebuild``, or another prefix."""

    def __init__(self, target: str, directory: str = WORK_DIRECTORY) -> None:
        self.target = target
        self._directory = directory
        self._storage = ArrowStorage(target)

    def is_at(self, root: str) -> bool:
        return root == self.target

    def path(self, name: str) -> str:
        return f"{self.target}/{self._directory}/{name}"

    def exists(self, name: str) -> bool:
        return self._storage.exists(self.path(name))

    def read_text(self, name: str) -> str:
        return self.read_bytes(name).decode()

    def read_bytes(self, name: str) -> bytes:
        return self._storage.read_bytes(self.path(name))

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file on this machine, and upload it as one object."""
        with tempfile.TemporaryDirectory(prefix="rmq-rebuild-") as directory:
            local = Path(directory) / "object"
            write(local)
            self.upload(name, local)

    def lock(self, root: str) -> AbstractContextManager[Callable[[], None]]:  # noqa: ARG002 # no broker runs here
        return self.lease("rebuild")

    @contextmanager
    def lease(self, work: str) -> Iterator[Callable[[], None]]:
        with object_lease.lease(_Leases(self), self.target, work) as check:
            yield check

    def upload(self, name: str, local: Path) -> None:
        self._put(local, self.path(name))

    def download(self, name: str, local: Path) -> None:
        with self._storage.open(self.path(name)) as source, local.open("wb") as target:
            for begin in range(0, source.size_bytes, _CHUNK_BYTES):
                target.write(read_range(source, begin, min(_CHUNK_BYTES, source.size_bytes - begin)))

    def put_text(self, text: str, path: str) -> None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            self._put(Path(file.name), path)

    def _put(self, local: Path, path: str) -> None:
        with (
            self._translate_errors(path),
            local.open("rb") as source,
            self._storage.file_system.open_output_stream(self._storage.inner(path)) as sink,
        ):
            sent = 0
            while chunk := source.read(_CHUNK_BYTES):
                sent += sink.write(chunk)
                if sent % _FLUSH_BYTES == 0:
                    sink.flush()

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error

    def clear(self, directories: Sequence[str]) -> None:  # noqa: ARG002 # an object store has none to make
        """Delete all objects of an earlier run, its plan first."""
        self.delete(self.path("plan.json"))
        self.delete_below(f"{self.target}/{self._directory}")

    def remove(self) -> None:
        with suppress(StoreError):
            self.delete_below(f"{self.target}/{self._directory}")

    def drop_spills(self) -> None:
        self.delete_below(self.path("spill"))

    def note_files(self, task: str, files: Mapping[str, int]) -> None:
        write_text(self, f"{_FILES}/{task}", json.dumps(files))

    def _read_noted_files(self, task: str) -> dict[str, int]:
        path = f"{_FILES}/{task}"
        try:
            files = json.loads(self.read_text(path))
            if not isinstance(files, dict) or not all(type(size) is int for size in files.values()):
                raise TypeError("no sizes by name")
            for name in files:
                check_name(name, REBUILT.directories)
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreError(f"{self.path(path)}: not a valid list of written files ({error})") from error
        return files

    def has_links(self) -> bool:
        return False  # no object store has symbolic links

    def publish(self, directories: Sequence[str]) -> JobSteps[None]:
        """Replace the target's objects by the new ones in steps. Raises StoreLayoutError for unknown objects."""
        refuse_unknown_files(StoreFiles(self._storage, self.target), directories)
        tasks = [entry.name for entry in self._storage.entries(self.path(_FILES))]
        note = add_seal({"directories": list(directories), "tasks": tasks}, self.target)
        write_text(self, _NOTE, json.dumps(note))
        yield from self.finish_publishing()

    def finish_publishing(self, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE) -> JobSteps[None]:
        """Complete an interrupted ``publish``, as long as its note exists.

        ``InterruptedRunPolicy.START_ANEW`` deletes the note: a rebuild makes deleted files again.

        Raises:
            StoreError: the note cannot be read, names files that no rebuild publishes, or is foreign.
        """
        if not self.exists(_NOTE):
            return
        if leftover is InterruptedRunPolicy.START_ANEW:
            self.delete(self.path("plan.json"))
            self.delete(self.path(_NOTE))
            return
        directories, tasks = self._read_note(leftover)
        self.delete(f"{self.target}/{MANIFEST}")
        for directory in directories:
            self.delete_below(f"{self.target}/{directory}")
        yield TaskBatch(self.copy_noted, tasks)
        self._put_manifest(directories, tasks)
        # The note is deleted before the objects that it lists, after the plan: a partial area must not be resumed.
        self.delete(self.path("plan.json"))
        self.delete(self.path(_NOTE))
        self.delete_below(f"{self.target}/{self._directory}")

    def _read_note(self, leftover: InterruptedRunPolicy) -> tuple[list[str], list[str]]:
        path = self.path(_NOTE)
        try:
            note = json.loads(self.read_text(_NOTE))
            directories, tasks = list(note["directories"]), list(note["tasks"])
            for name in directories:
                if name not in REBUILT.directories:
                    raise ValueError(f"names {name!r}, which is never published here")
            for name in tasks:
                if not isinstance(name, str):
                    raise TypeError(f"names {name!r}, which is no task")
                check_name(f"{_FILES}/{name}", {_FILES}, depth=2)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(
                f"{path}: not a valid publication record ({error}). Give --start-anew to rebuild."
            ) from error
        names = ", ".join(directories) or "nothing"
        check_origin(note, self.target, path, f"an interrupted publication of {names}", leftover)
        if leftover is InterruptedRunPolicy.RESUME:
            for name in tasks:  # somebody else's lists are checked before anything is deleted
                self._read_noted_files(name)
        return directories, tasks

    def _put_manifest(self, directories: Sequence[str], tasks: Sequence[str]) -> None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(f'{{"directories": {json.dumps(directories)}, "files": {{')
            separator = ""
            for task in tasks:
                if noted := self._read_noted_files(task):
                    file.write(separator + json.dumps(noted)[1:-1])
                    separator = ", "
            file.write("}}")
            file.flush()
            self._put(Path(file.name), f"{self.target}/{MANIFEST}")

    def copy_noted(self, task: str) -> None:
        """Copy the objects that a task has written to their names in the target."""
        self.copy_new(list(self._read_noted_files(task)))

    def copy_new(self, names: Sequence[str]) -> None:
        """Copy objects within the object store from below ``new/`` to their names in the target."""
        list(request_all(self._storage, self._copy, names))

    def _copy(self, name: str) -> None:
        source, target = self.path(f"new/{name}"), f"{self.target}/{name}"
        with self._translate_errors(target):
            self._storage.file_system.copy_file(self._storage.inner(source), self._storage.inner(target))

    def delete(self, path: str) -> None:
        if self._storage.exists(path):
            with self._translate_errors(path):
                self._storage.file_system.delete_file(self._storage.inner(path))

    def delete_below(self, path: str) -> None:
        if self._storage.exists(path):
            with self._translate_errors(path):
                self._storage.file_system.delete_dir(self._storage.inner(path))


def check_name(name: object, directories: Container[str], *, depth: int | None = None) -> None:
    """Refuse a name out of a note that is not that of an object in one of some directories. Raises ValueError."""
    parts = name.split("/") if isinstance(name, str) else []
    is_sound = len(parts) > 1 and not any(part in {"", ".", ".."} or "\0" in part for part in parts)
    if not is_sound or parts[0] not in directories or depth not in {None, len(parts)}:
        raise ValueError(f"names {name!r}, which is never published here")


class _Leases:
    """Lease objects of one target; the ``LeaseObjectStore`` of ``object_lease``."""

    def __init__(self, area: ObjectArea) -> None:
        self._area = area
        self._storage, self._directory = open_storage(f"{area.target}/{object_lease.DIRECTORY}")

    def names(self) -> list[str]:
        return [entry.name for entry in self._storage.entries(self._directory) if not entry.is_directory]

    def read(self, name: str) -> str | None:
        try:
            return self._storage.read_bytes(f"{self._directory}/{name}").decode("utf-8", "replace")
        except StoreNotFoundError:
            return None

    def put(self, name: str, text: str) -> None:
        self._area.put_text(text, f"{self._area.target}/{object_lease.DIRECTORY}/{name}")

    def delete(self, name: str) -> None:
        self._area.delete(f"{self._area.target}/{object_lease.DIRECTORY}/{name}")
