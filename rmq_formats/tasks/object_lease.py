"""Lease by heartbeat objects: one writer at a time under one target of an object store, which has no locks.

Nor does ``pyarrow.fs`` have conditional puts. So a rebuild puts a lease object of its own below
``.rmq-rebuild-leases``, and an export in a directory beside its table, then lists them: of two that begin at once at
least one sees the other's, and one that sees a living lease is refused. An owner rewrites its object every few seconds.
One that has not for longer than ``_SILENCE_S`` is considered dead, and its object deleted; so is one whose process ran
on this very machine and is gone, or is this one, which no longer holds it and could not delete it. Before it publishes,
an owner checks that its own object still exists.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from rmq_formats.errors import StoreError, StoreLockedError

DIRECTORY: Final = ".rmq-rebuild-leases"
_BEAT_S: Final = 5.0
_SILENCE_S: Final = 25.0  # several heartbeats, as a slow network may delay some
_LOOK_S: Final = 1.0

# A process forked while this one talks to the object store would inherit locks that nobody unlocks.
_talking = threading.Lock()
os.register_at_fork(before=_talking.acquire, after_in_parent=_talking.release, after_in_child=_talking.release)


_held: Final[set[str]] = set()  # names of this process's leases


class Notes(Protocol):
    """Store of small lease objects in one directory, by name."""

    def names(self) -> list[str]:
        """List the names of the objects."""
        ...

    def read(self, name: str) -> str | None:
        """Read an object's text; None if it is not there."""
        ...

    def put(self, name: str, text: str) -> None:
        """Write an object, in the place of an older one."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        ...


@contextmanager
def lease(notes: Notes, target: str, work: str = "rebuild") -> Iterator[Callable[[], None]]:
    """Hold the lease of a target; gives a function that raises if the lease has been lost.

    Args:
        notes: where the leases are.
        target: what is written to.
        work: what its owner does there, for messages: ``rebuild`` or ``export``.

    Raises:
        StoreLockedError: another one is at work there.
        StoreError: the object store cannot be read or written.
    """
    own = uuid.uuid4().hex
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(notes, own, over), daemon=True)
    with _holding(own):
        _put(notes, own, 0)
        try:
            beat.start()
            _refuse_company(notes, own, target, work)
            yield lambda: _refuse_lost(notes, own, target, work)
        finally:
            over.set()
            beat.join()
            with suppress(StoreError):  # if this fails, the next one finds that nobody holds it
                notes.delete(own)


@contextmanager
def _holding(own: str) -> Iterator[None]:
    _held.add(own)
    try:
        yield
    finally:
        _held.discard(own)


def _beat(notes: Notes, own: str, over: threading.Event) -> None:
    beats = 0
    while not over.wait(_BEAT_S):
        beats += 1
        # One heartbeat may fail, as by a full disk here; the next may not.
        with suppress(StoreError, OSError), _talking:
            if notes.read(own) is not None:
                _put(notes, own, beats)


def _put(notes: Notes, own: str, beats: int) -> None:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "process": _process(os.getpid()), "beats": beats}
    notes.put(own, json.dumps(owner))


def _refuse_company(notes: Notes, own: str, target: str, work: str) -> None:
    """Wait until all other leases have ended or are known to be dead. Raises StoreLockedError for one that lives."""
    first = {name: text for name in notes.names() if name != own and (text := notes.read(name)) is not None}
    deadline = time.monotonic() + _SILENCE_S
    while first:
        for name, text in list(first.items()):
            now = notes.read(name)
            lives = _lives(text) and not _is_left_behind(name, text)
            if now is None or lives is False or (time.monotonic() >= deadline and now == text):
                notes.delete(name)
                del first[name]
            elif lives or now != text:
                raise StoreLockedError(f"{target}: another {work} writes there ({_who(text)}); let it end first")
        if first:
            time.sleep(_LOOK_S)


def _refuse_lost(notes: Notes, own: str, target: str, work: str) -> None:
    if notes.read(own) is None:
        raise StoreLockedError(f"{target}: this {work} lost its lease to another one; nothing was published")


def _lives(text: str) -> bool | None:
    """Return whether the process that holds a lease lives; None if it is not of this machine."""
    try:
        owner = json.loads(text)
        process, pid = str(owner["process"]), int(owner["pid"])
    except (ValueError, KeyError, TypeError):
        return None
    here = _process(os.getpid())
    if not here or process.split()[:2] != here.split()[:2]:
        return None
    return _process(pid) == process


def _is_left_behind(name: str, text: str) -> bool:
    """Return whether this very process put a lease, and ended its work without deleting it."""
    return name not in _held and json.loads(text)["process"] == _process(os.getpid())


def _who(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "of an unknown process"


def _process(pid: int) -> str:
    """Identify a running process of this machine: boot, pid namespace, pid, start time; empty if that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        state, *rest = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return "" if state == "Z" else f"{boot} {Path('/proc/self/ns/pid').readlink()} {pid} {rest[18]}"
    except OSError:
        return ""
