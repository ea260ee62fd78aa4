"""A rebuild into an object store, which has neither renames nor a disk that tasks could share.

Tasks write each file on their own disk and put it below ``.rmq-rebuild/`` as one object, which is there
whole or not at all. At the end the store itself copies the new objects to their names, and an object that
lists them, ``rebuild-manifest.json``, is put last. What a rebuild replaces stays as it was until all new
objects exist; from then on until the manifest is there, the target is not to be read. A run after a kill
goes on.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs

from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.offline import object_lease
from rmq_formats.offline.rebuild import WORK_DIRECTORY, write_text
from rmq_formats.segment import ArrowStorage, open_storage

MANIFEST: Final = "rebuild-manifest.json"
_NOTE: Final = "publish.json"
_COPIES_AT_ONCE: Final = 16  # requests that wait for the store, which does the work
_CHUNK_BYTES: Final = 4 << 20
_FLUSH_BYTES: Final = 64 << 20  # pyarrow sends in the background, and holds in memory what is not yet sent


class ObjectArea:
    """Objects below ``<target>/.rmq-rebuild``, or another directory."""

    def __init__(self, target: str, directory: str = WORK_DIRECTORY) -> None:
        """Of the URI that is published under; nothing is made yet."""
        self.target = target
        self._directory = directory
        self._storage = ArrowStorage(target)

    def is_at(self, root: str) -> bool:
        """Whether a store's root is what is published under."""
        return root == self.target

    def path(self, name: str) -> str:
        """Where an object is, for those who read it."""
        return f"{self.target}/{self._directory}/{name}"

    def exists(self, name: str) -> bool:
        """Whether an object is there."""
        return self._storage.exists(self.path(name))

    def read_text(self, name: str) -> str:
        """A small object's text."""
        return self.read_bytes(name).decode()

    def read_bytes(self, name: str) -> bytes:
        """A small object."""
        return self._storage.read_bytes(self.path(name))

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Have a file written on this machine, and put it as one object."""
        with tempfile.TemporaryDirectory(prefix="rmq-rebuild-") as directory:
            local = Path(directory) / "object"
            write(local)
            self._put(local, self.path(name))

    @contextmanager
    def lock(self, root: str) -> Iterator[Callable[[], None]]:  # noqa: ARG002 # no broker runs on an object store
        """Be the only rebuild under the target, see ``object_lease.lease``."""
        with object_lease.lease(_Leases(self), self.target) as check:
            yield check

    def put_text(self, text: str, path: str) -> None:
        """Put a small object."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            self._put(Path(file.name), path)

    def _put(self, local: Path, path: str) -> None:
        with (
            self._told(path),
            local.open("rb") as source,
            self._storage.file_system.open_output_stream(self._storage.inner(path)) as sink,
        ):
            sent = 0
            while chunk := source.read(_CHUNK_BYTES):
                sent += sink.write(chunk)
                if sent % _FLUSH_BYTES == 0:
                    sink.flush()

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error

    def clear(self, directories: Sequence[str]) -> None:  # noqa: ARG002 # an object store has none to make
        """Begin anew: nothing is left of an earlier run, its plan gone first."""
        self.delete(self.path("plan.json"))
        self._delete_below(f"{self.target}/{self._directory}")

    def remove(self) -> None:
        """Delete everything; what cannot be deleted stays."""
        with suppress(StoreError):
            self._delete_below(f"{self.target}/{self._directory}")

    def drop_spills(self) -> None:
        """Delete the intermediate objects."""
        self._delete_below(self.path("spill"))

    def publish(self, directories: Sequence[str]) -> None:
        """Copy the new objects to their names, in the place of all that is there, and put the manifest."""
        files = self._below(self.path("new"))
        write_text(self, _NOTE, json.dumps({"directories": list(directories), "files": files}))
        self.finish_publishing()

    def finish_publishing(self) -> None:
        """Do what is left of a ``publish`` that was interrupted: all of it, as long as its note is there."""
        if not self.exists(_NOTE):
            return
        note = json.loads(self.read_text(_NOTE))
        self.delete(f"{self.target}/{MANIFEST}")
        for directory in note["directories"]:
            self._delete_below(f"{self.target}/{directory}")
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            list(pool.map(self._copy, note["files"]))
        self.put_text(json.dumps(note), f"{self.target}/{MANIFEST}")
        # The note goes before what it speaks of, and after the plan: half of this is none to go on with.
        self.delete(self.path("plan.json"))
        self.delete(self.path(_NOTE))
        self._delete_below(f"{self.target}/{self._directory}")

    def _copy(self, name: str) -> None:
        target = f"{self.target}/{name}"
        with self._told(target):
            self._storage.file_system.copy_file(
                self._storage.inner(self.path(f"new/{name}")), self._storage.inner(target)
            )

    def _below(self, path: str) -> dict[str, int]:
        """Sizes, in bytes, of the objects below a path, by their names from there."""
        inner = self._storage.inner(path)
        selector = pafs.FileSelector(inner, recursive=True, allow_not_found=True)
        with self._told(path):
            infos: list[Any] = self._storage.file_system.get_file_info(selector)
        files = [info for info in infos if info.type == pafs.FileType.File]
        return {info.path.removeprefix(f"{inner}/"): info.size for info in sorted(files, key=lambda info: info.path)}

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""
        if self._storage.exists(path):
            with self._told(path):
                self._storage.file_system.delete_file(self._storage.inner(path))

    def _delete_below(self, path: str) -> None:
        if self._storage.exists(path):
            with self._told(path):
                self._storage.file_system.delete_dir(self._storage.inner(path))


class _Leases:
    """The leases of one target."""

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
