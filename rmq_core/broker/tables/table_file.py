"""JSON tables of a broker in ``config/``: in memory, written when changed or periodically.

Names and content of the files are the original's, so that a Java broker can use them. They are standard JSON, which
fastjson reads too. After a failed write, changes that the file does not have are reverted.

Source: ``ConfigManager``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import structs

from rmq_core.broker.slices import Sliced, Slices
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.store.files import config_files
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.paths import config_dir

log = logging.getLogger("rmq.broker")
_THREADS: Final = 8  # a file that waits for the log must not delay the other files
_REST_FACTOR: Final = 9.0  # times of the encoding: a pause, so that encoding takes a tenth of the loop's time at most
_FLUSH_TIMEOUT_S: Final = 10.0  # a file that waits longer for the log's flush is written by a later save
_S = TypeVar("_S", bound=msgspec.Struct)
T = TypeVar("T")


class TableFiles:
    """The files in ``config/`` of one store, written on threads between ``start`` and ``close``, else at once."""

    def __init__(self, root: str, disk: Disk, threads: Threads) -> None:
        self.slices = Slices()
        self.directory = config_dir(root)
        self.disk = disk
        self._threads = threads
        self._pool: Executor | None = None
        self._running: set[asyncio.Future[Any]] = set()
        self._delayed: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        """Write on threads from now on, for the running event loop. Raises OSError.

        The directory is flushed first, as a killed broker may have left new names unflushed.
        """
        if Path(self.directory).is_dir():
            self.disk.sync_directory(self.directory)
        self._pool = self._threads.pool("rmq-broker-files", _THREADS)

    async def drain(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Wait for running writes, and write at once from now on."""
        for handle in self._delayed:
            handle.cancel()
        await self.drain()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def has(self, name: str) -> bool:
        """Return whether the file or its ``.bak`` exists."""
        return any(Path(f"{self.directory}/{name}{suffix}").exists() for suffix in ("", ".bak"))

    def load(self, name: str, kind: type[_S]) -> _S:
        """Load a table from its file or its ``.bak``; return an empty table without both."""
        path = f"{self.directory}/{name}"
        table = config_files.load(path, lambda text: decode_body(text.encode(), kind), self.disk)
        return kind() if table is None else table

    def collect(self, pieces: Iterator[bytes], done: Callable[[list[bytes], float], None]) -> None:
        """Collect all pieces, in time slices if files are written on threads; call ``done`` with pieces and seconds."""
        if self._pool is None:
            done(list(pieces), 0.0)
            return
        collecting = self.slices.collect(pieces)
        self._running.add(collecting)

        def end(collecting: asyncio.Future[Sliced[bytes]]) -> None:
            self._running.discard(collecting)
            sliced = collecting.result()
            done(sliced.items, sliced.took_s)

        collecting.add_done_callback(end)

    def run(self, write: Callable[[], str], done: Callable[[str], None]) -> None:
        """Run ``write``, then ``done`` with its result; ``done`` runs on the caller's thread."""
        if self._pool is None:
            done(write())
            return
        writing = asyncio.get_running_loop().run_in_executor(self._pool, write)
        self._running.add(writing)

        def end(writing: asyncio.Future[str]) -> None:
            self._running.discard(writing)
            done(writing.result())

        writing.add_done_callback(end)

    def run_later(self, delay_s: float, save: Callable[[], None]) -> None:
        """Call ``save`` after a delay; at once if files are not written on threads."""
        if self._pool is None:
            save()
            return

        def call() -> None:
            self._delayed.discard(handle)
            save()

        handle = asyncio.get_running_loop().call_later(delay_s, call)
        self._delayed.add(handle)


class TableFile:
    """File of one table: counts changes, and runs one write at a time.

    After a failed write, the next ``save`` writes all changes that the file lacks.

    Attributes:
        changes: number of changes of the table; the table increments it.
        written: number of changes that the file has.
        fault: error of the last write; empty after a successful one.
    """

    def __init__(
        self,
        files: TableFiles,
        name: str,
        body: Callable[[], msgspec.Struct],
        progress_store: MessageStore | None = None,
        *,
        backs_up_former_text: bool = True,
    ) -> None:
        """Create the object without reading the file.

        Args:
            body: returns the content to encode in pieces.
            progress_store: store whose log the table has offsets of, if any. The log is flushed before the table is
                written, so that no offset is beyond the log's end after a loss of power.
            backs_up_former_text: ``.bak`` has the text before the last change; if false, the file's text.
        """
        self.name = name
        self.path = f"{files.directory}/{name}"
        self.changes = 0
        self.written = 0
        self.fault = ""
        self._files = files
        self._body = body
        self._store = progress_store
        self._backs_up_former_text = backs_up_former_text
        self._is_writing = False
        self._is_save_requested = False  # ``save`` was called during a write
        self._rest_s = 0.0
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []
        self._listeners: list[Callable[[int], None]] = []

    def on_written(self, listener: Callable[[int], None]) -> None:
        """Register a callback for each successful write; its argument is the number of written changes."""
        self._listeners.append(listener)

    def save(self) -> None:
        """Write the file if the table has unwritten changes. An I/O error is logged."""
        if self._is_writing:
            self._is_save_requested = True
            return
        if self.written == self.changes:
            return
        self._is_writing, self._is_save_requested = True, False
        self._files.collect(table_pieces(self._body()), partial(self._write_encoded, self.changes))

    def _write_encoded(self, changes: int, pieces: list[bytes], took_s: float) -> None:
        """Write the encoded table, which may also have changes made during the encoding."""
        self._rest_s = _REST_FACTOR * took_s
        end = 0 if self._store is None else self._store.max_physical_offset
        self._files.run(partial(self._write, pieces, end), partial(self._finish_write, changes))

    def _write(self, pieces: list[bytes], log_end: int) -> str:
        """Write the file, on any thread; return the error, or an empty text."""
        if self._store is not None and not self._store.wait_flushed(log_end, _FLUSH_TIMEOUT_S):
            return "the log whose offsets it has is not flushed"
        try:
            config_files.save(
                self.path,
                b"".join(pieces),
                self._files.disk,
                is_retry=bool(self.fault),
                backs_up_former_text=self._backs_up_former_text,
            )
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _finish_write(self, changes: int, fault: str) -> None:
        self._is_writing = False
        if fault and fault != self.fault:
            log.error("%(path)s cannot be written: %(error)s", {"path": self.path, "error": fault})
        self.fault = fault
        if not fault:
            self.written = changes
            for listener in self._listeners:
                listener(changes)
        callbacks, self._waiting = self._waiting, []
        for required_changes, callback in reversed(callbacks) if fault else callbacks:  # reverts later changes first
            if fault or required_changes <= changes:
                callback(not fault)
            else:
                self._waiting.append((required_changes, callback))
        if self._is_save_requested and not fault:  # after an error a later save tries again
            self._files.run_later(self._rest_s, self.save)

    def call_when_written(self, done: Callable[[bool], None]) -> None:
        """Call ``done`` once the file has all current changes: with True, or with False if the write failed."""
        if self.written == self.changes:
            done(True)
            return
        self._waiting.append((self.changes, done))
        self.save()

    async def wait_written(self, timeout_s: float) -> bool:
        """Wait until the file has all current changes; return False on a timeout or a failed write."""
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.call_when_written(lambda success: None if written.done() else written.set_result(success))
        try:
            async with asyncio.timeout(timeout_s):
                return await written
        except TimeoutError:
            return False


_ENTRIES_PER_PIECE: Final = 50  # these many groups, whose entries are the longest, take a fraction of a time slice


def table_pieces(body: msgspec.Struct) -> Iterator[bytes]:
    """Encode a table as indented JSON, and its large members piece by piece.

    Entries added or removed meanwhile may be missing or present, but never partial.
    """
    separator = b"{"
    for field in structs.fields(body):
        value = getattr(body, field.name)
        if value is msgspec.UNSET:
            continue
        yield b"%b\n %b: " % (separator, msgspec.json.encode(field.encode_name))
        separator = b","
        if isinstance(value, Mapping) and len(value) > _ENTRIES_PER_PIECE:
            yield from _entry_pieces(value)
        else:
            yield _encode_indented(value)
    yield b"\n}"


def _entry_pieces(table: Mapping[Any, Any]) -> Iterator[bytes]:
    entries = iter(list(table.items()))
    separator = b"{"
    while piece := dict(islice(entries, _ENTRIES_PER_PIECE)):
        yield separator + _encode_indented(piece)[1:-2]  # without its braces
        separator = b","
    yield b"\n}"


def _encode_indented(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


class WrittenTable(Protocol):
    """Table whose changes take effect after the write of its file."""

    file: TableFile

    def revert(self, since: int, until: int) -> None:
        """Revert the changes with numbers above ``since`` up to ``until``."""


@dataclass(slots=True)
class _Change(Generic[T]):
    number: int
    name: str
    before: T | None
    after: T | None


class PendingChanges(Generic[T]):
    """Changes of a table since the last write of its file."""

    def __init__(self, table: dict[str, T]) -> None:
        self._table = table
        self._changes: list[_Change[T]] = []

    def record(self, number: int, name: str, before: T | None, after: T | None) -> None:
        """Record a change of an entry under its number in the file's count; None stands for a missing entry."""
        self._changes.append(_Change(number, name, before, after))

    @property
    def names(self) -> set[str]:
        return {change.name for change in self._changes}

    def confirm(self, written: int) -> None:
        """Remove the changes up to a number, as they are written."""
        self._changes = [change for change in self._changes if change.number > written]

    def revert(self, since: int, until: int) -> list[str]:
        """Revert the changes above ``since`` up to ``until`` of entries without later changes; return their names."""
        names = []
        for change in reversed([change for change in self._changes if since < change.number <= until]):
            self._changes.remove(change)
            later_changes = (other for other in self._changes if other.name == change.name and other.number > until)
            later_change = next(later_changes, None)
            if later_change is not None:
                later_change.before = change.before
                continue
            names.append(change.name)
            if change.before is None:
                self._table.pop(change.name, None)
            else:
                self._table[change.name] = change.before
        return names
