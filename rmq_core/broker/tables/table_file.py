"""JSON tables of a broker in ``config/``: in memory, written when changed or periodically.

The files are the original's, by name and content, so that a Java broker goes on with them; they are standard
JSON where fastjson's are not, which it reads as well. Changes of a table that its file does not have yet are reverted
after a failed write.

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
_THREADS: Final = 8  # one for each file: one that waits for the log holds up no other
_REST: Final = 9.0  # times what encoding a table has taken: at most a tenth of the event loop's time goes into that
_FLUSH_TIMEOUT_S: Final = 10.0  # a file that waits for the log for longer is written at a later turn
_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)
T = TypeVar("T")


class TableFiles:
    """The files in ``config/`` of one store. They are written at once, and on threads between start and close."""

    def __init__(self, root: str, disk: Disk, threads: Threads) -> None:
        self.slices = Slices()
        self.directory = config_dir(root)
        self.disk = disk
        self._threads = threads
        self._pool: Executor | None = None
        self._under_way: set[asyncio.Future[Any]] = set()
        self._later: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        """From now on write on threads, for the running event loop. Raises OSError.

        Names that a broker has not forced, as it was killed, are forced first: from now on they count.
        """
        if Path(self.directory).is_dir():
            self.disk.sync_directory(self.directory)
        self._pool = self._threads.pool("rmq-broker-files", _THREADS)

    async def drain(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        """Wait for the writes that are under way, and write at once again from now on."""
        for handle in self._later:
            handle.cancel()
        await self.drain()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def has(self, name: str) -> bool:
        """Return whether the file or its ``.bak`` exists."""
        return any(Path(f"{self.directory}/{name}{end}").exists() for end in ("", ".bak"))

    def load(self, name: str, kind: type[_S]) -> _S:
        """Load a table from its file or its ``.bak``; an empty one if there is none."""
        path = f"{self.directory}/{name}"
        table = config_files.load(path, lambda text: decode_body(text.encode(), kind), self.disk)
        return kind() if table is None else table

    def collect(self, pieces: Iterator[bytes], done: Callable[[list[bytes], float], None]) -> None:
        """Collect all pieces, in slices if files are written on threads; then run a callback.

        It gets the pieces, and the seconds that making them took of the event loop.
        """
        if self._pool is None:
            done(list(pieces), 0.0)
            return
        collecting = self.slices.collect(pieces)
        self._under_way.add(collecting)

        def end(collecting: asyncio.Future[Sliced[bytes]]) -> None:
            self._under_way.discard(collecting)
            sliced = collecting.result()
            done(sliced.items, sliced.took_s)

        collecting.add_done_callback(end)

    def run(self, write: Callable[[], str], done: Callable[[str], None]) -> None:
        """Run a write, then a callback with what it returns; the latter where this is called."""
        if self._pool is None:
            done(write())
            return
        writing = asyncio.get_running_loop().run_in_executor(self._pool, write)
        self._under_way.add(writing)

        def end(writing: asyncio.Future[str]) -> None:
            self._under_way.discard(writing)
            done(writing.result())

        writing.add_done_callback(end)

    def run_later(self, delay_s: float, save: Callable[[], None]) -> None:
        """Call a function after some time; at once if nothing is written on threads."""
        if self._pool is None:
            save()
            return

        def call() -> None:
            self._later.discard(handle)
            save()

        handle = asyncio.get_running_loop().call_later(delay_s, call)
        self._later.add(handle)


class TableFile:
    """File of one table, with the number of unwritten changes and one write at a time.

    What a failed write was to bring is still lacking, and the next ``save`` writes it.

    Attributes:
        changes: how often the table has changed; who changes it, counts up.
        written: the changes that the file has.
        fault: why the last write failed; empty if it did not.
    """

    def __init__(
        self, files: TableFiles, name: str, body: Callable[[], msgspec.Struct],
        progress_store: MessageStore | None = None, *, backs_up_former_text: bool = True,
    ) -> None:  # fmt: skip
        """Name a file.

        Args:
            body: gives what it is to hold, to be encoded in pieces.
            progress_store: a store if the table tells of progress in its log: the log is forced before the table is
                written, lest a loss of power leave progress beyond the log's end.
            backs_up_former_text: whether ``.bak`` has the text before the last change, or the same as the file.
        """
        self.name = name
        self.path = f"{files.directory}/{name}"
        self.changes = 0
        self.written = 0
        self.fault = ""
        self._files = files
        self._body = body
        self._store = progress_store
        self._keeps_former = backs_up_former_text
        self._is_writing = False
        self._is_wanted = False  # by a ``save`` while a write is under way
        self._rest_s = 0.0
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []
        self._listeners: list[Callable[[int], None]] = []

    def on_written(self, listener: Callable[[int], None]) -> None:
        """Register a callback for each successful write, with the ``changes`` that the file has then."""
        self._listeners.append(listener)

    def save(self) -> None:
        """Write the file if it lacks anything: all changes since the last write at once. An I/O error is logged."""
        if self._is_writing:
            self._is_wanted = True
            return
        if self.written == self.changes:
            return
        self._is_writing, self._is_wanted = True, False
        self._files.collect(table_pieces(self._body()), partial(self._encoded, self.changes))

    def _encoded(self, changes: int, pieces: list[bytes], took_s: float) -> None:
        """Write what the table was encoded to; it may have changes that came meanwhile, too."""
        self._rest_s = _REST * took_s
        end = 0 if self._store is None else self._store.max_physical_offset
        self._files.run(partial(self._write, pieces, end), partial(self._end, changes))

    def _write(self, pieces: list[bytes], log_end: int) -> str:
        """Write the file, on any thread; why it cannot be written, or nothing."""
        if self._store is not None and not self._store.wait_flushed(log_end, _FLUSH_TIMEOUT_S):
            return "the log that it tells of is not forced"
        try:
            config_files.save(
                self.path, b"".join(pieces), self._files.disk,
                is_retry=bool(self.fault), backs_up_former_text=self._keeps_former,
            )  # fmt: skip
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _end(self, changes: int, fault: str) -> None:
        self._is_writing = False
        if fault and fault != self.fault:
            log.error("%(path)s cannot be written: %(error)s", {"path": self.path, "error": fault})
        self.fault = fault
        if not fault:
            self.written = changes
            for listener in self._listeners:
                listener(changes)
        waiting, self._waiting = self._waiting, []
        for required_changes, done in reversed(waiting) if fault else waiting:  # a later change is taken back first
            if fault or required_changes <= changes:
                done(not fault)
            else:
                self._waiting.append((required_changes, done))
        if self._is_wanted and not fault:  # else it is tried again by and by
            self._files.run_later(self._rest_s, self.save)

    def when_written(self, done: Callable[[bool], None]) -> None:
        """Run a callback once the file has all changes made so far: with True, or False if that failed."""
        if self.written == self.changes:
            done(True)
            return
        self._waiting.append((self.changes, done))
        self.save()

    async def is_written(self, timeout_s: float) -> bool:
        """Wait until the file has all changes made so far; False if it has not in time, or cannot be written."""
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.when_written(lambda is_there: None if written.done() else written.set_result(is_there))
        try:
            async with asyncio.timeout(timeout_s):
                return await written
        except TimeoutError:
            return False


_ENTRIES: Final = 50  # of a piece: a fraction of a slice for groups, which have the longest


def table_pieces(body: msgspec.Struct) -> Iterator[bytes]:
    """Encode a table as indented JSON; those of its members that are tables piece by piece.

    Entries that are put or taken away meanwhile may be there or not; each that is there is whole.
    """
    before = b"{"
    for field in structs.fields(body):
        value = getattr(body, field.name)
        if value is msgspec.UNSET:
            continue
        yield b"%b\n %b: " % (before, msgspec.json.encode(field.encode_name))
        before = b","
        if isinstance(value, Mapping) and len(value) > _ENTRIES:
            yield from _entries(value)
        else:
            yield _indented(value)
    yield b"\n}"


def _entries(table: Mapping[Any, Any]) -> Iterator[bytes]:
    entries = iter(list(table.items()))
    before = b"{"
    while piece := dict(islice(entries, _ENTRIES)):
        yield before + _indented(piece)[1:-2]  # without its braces
        before = b","
    yield b"\n}"


def _indented(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


class WrittenTable(Protocol):
    """Table whose changes take effect after the write of its file."""

    file: TableFile

    def revert(self, since: int, until: int) -> None:
        """Revert the changes after one number up to another."""


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

    def note(self, number: int, name: str, before: T | None, after: T | None) -> None:
        """Record a change of an entry, by its number as the file counts changes; None for no entry."""
        self._changes.append(_Change(number, name, before, after))

    @property
    def names(self) -> set[str]:
        """Entries with a change that the file lacks."""
        return {change.name for change in self._changes}

    def drop(self, written: int) -> None:
        """Remove the changes up to a number, which the file has."""
        self._changes = [change for change in self._changes if change.number > written]

    def revert(self, since: int, until: int) -> list[str]:
        """Revert changes after one number up to another, but of entries changed since; return the reverted names."""
        names = []
        for change in reversed([change for change in self._changes if since < change.number <= until]):
            self._changes.remove(change)
            later = next((other for other in self._changes if other.name == change.name and other.number > until), None)
            if later is not None:
                later.before = change.before
            elif change.before is None:
                self._table.pop(change.name, None)
                names.append(change.name)
            else:
                self._table[change.name] = change.before
                names.append(change.name)
        return names
