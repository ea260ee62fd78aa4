"""Lease by heartbeat objects: one writer at a time under one target of an object store, which has no locks.

``pyarrow.fs`` has no conditional puts, and not every object store has them. So a writer puts a lease object with a
random name, a rebuild below ``.rmq-rebuild-leases``, an export in a directory beside its table. Then the writer lists
all leases: large object stores list all objects that were put before. Among writers that begin at once the lesser name
wins:

1. A writer puts a lease that wants, and lists. A lease that holds refuses the writer, and so does a lesser name.
2. The writer puts a lease that holds, and lists again. The writer waits for each lesser name: its owner either listed
   before this hold, and will hold and refuse this writer, or listed after it, and is refused.

So of two successful writers, the one with the greater name would have seen the other's hold. An owner rewrites its
lease every few seconds. A lease that stays the same for ``_SILENCE_S`` is deleted. So is the lease of a process of this
machine that is gone, and a lease that this process has ended and could not delete. Before a publication, the owner
checks that the lease still exists.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from rmq_formats.errors import StoreError, StoreLockedError

DIRECTORY: Final = ".rmq-rebuild-leases"
_BEAT_S: Final = 5.0
_SILENCE_S: Final = 25.0  # several heartbeats, as a slow network may delay some
_LOOK_S: Final = 1.0
_WANTS: Final = "wants"
_HOLDS: Final = "holds"  # as a lease without a state does, of an earlier version

# A process forked while this one talks to the object store would inherit locks that nobody unlocks.
_talking = threading.Lock()
os.register_at_fork(before=_talking.acquire, after_in_parent=_talking.release, after_in_child=_talking.release)


_held: Final[set[str]] = set()  # names of this process's leases


class LeaseObjectStore(Protocol):
    """Store of small lease objects in one directory, by name."""

    def names(self) -> list[str]:
        """List the names of the objects."""

    def read(self, name: str) -> str | None:
        """Read an object's text; None for a missing object."""

    def put(self, name: str, text: str) -> None:
        """Write or overwrite an object."""

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""


@contextmanager
def lease(lease_objects: LeaseObjectStore, target: str, work: str = "rebuild") -> Iterator[Callable[[], None]]:
    """Acquire the lease of a target; yield a function that raises if the lease is lost.

    Args:
        work: the owner's job, for error texts: ``rebuild`` or ``export``.

    Raises:
        StoreLockedError: another process has the lease.
        StoreError: the object store cannot be read or written.
    """
    own_lease = _OwnLease(lease_objects)
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(own_lease, over), daemon=True)
    with ExitStack() as stack:
        stack.callback(_held.discard, own_lease.name)
        _held.add(own_lease.name)
        own_lease.put(_WANTS)
        try:
            beat.start()
            refusal = f"{target}: another {work} writes there"
            _wait_for_others(lease_objects, own_lease.name, refusal, is_candidate=True)
            _refuse_lost(lease_objects, own_lease.name, target, work)
            own_lease.put(_HOLDS)
            _wait_for_others(lease_objects, own_lease.name, refusal, is_candidate=False)
            yield lambda: _refuse_lost(lease_objects, own_lease.name, target, work)
        finally:
            over.set()
            beat.join()
            with suppress(StoreError):  # if this fails, the next owner finds that nobody holds the lease
                lease_objects.delete(own_lease.name)


class _OwnLease:
    """This process's lease object."""

    def __init__(self, lease_objects: LeaseObjectStore) -> None:
        self._lease_objects = lease_objects
        self.name = uuid.uuid4().hex
        self._state = _WANTS
        self._beats = 0

    def put(self, state: str) -> None:
        with _talking:
            self._state = state
            self._write()

    def beat(self) -> None:
        """Rewrite the lease object, unless somebody has deleted it."""
        with _talking:
            if self._lease_objects.read(self.name) is not None:
                self._beats += 1
                self._write()

    def _write(self) -> None:
        pid = os.getpid()
        owner = {"host": socket.gethostname(), "pid": pid, "process": _process(pid)}
        self._lease_objects.put(self.name, json.dumps(owner | {"beats": self._beats, "state": self._state}))


def _beat(own_lease: _OwnLease, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        # One heartbeat may fail, as by a full disk here; the next may not.
        with suppress(StoreError, OSError):
            own_lease.beat()


def _wait_for_others(lease_objects: LeaseObjectStore, own_name: str, refusal: str, *, is_candidate: bool) -> None:
    """Wait until no other lease with a lesser name exists; delete expired leases.

    Raises StoreLockedError for a holder of the lease. A candidate is refused for any lease with a lesser name, and for
    each holder.
    """
    leases = {name: text for name in lease_objects.names() if (text := lease_objects.read(name)) is not None}
    leases.pop(own_name, None)
    deadline = time.monotonic() + _SILENCE_S
    while leases:
        for name, text in list(leases.items()):
            now = lease_objects.read(name)
            lives = _lives(text) and not _is_abandoned(name, text)
            if now is None or lives is False or (time.monotonic() >= deadline and now == text):
                lease_objects.delete(name)
                del leases[name]
            elif not (name < own_name or (is_candidate and _is_holder(now))):
                del leases[name]
            elif (lives or now != text) and (is_candidate or _is_holder(now)):
                raise StoreLockedError(f"{refusal} ({_who(now)}); let it end first")
        if leases:
            time.sleep(_LOOK_S)


def _refuse_lost(lease_objects: LeaseObjectStore, own_name: str, target: str, work: str) -> None:
    if lease_objects.read(own_name) is None:
        raise StoreLockedError(f"{target}: this {work} lost its lease to another one; nothing was published")


def _parse_owner(text: str) -> dict[str, Any]:
    """Parse a lease object; empty for a text that no owner wrote."""
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _lives(text: str) -> bool | None:
    """Return whether the owner of a lease is a running process; None for an owner on another machine."""
    owner = _parse_owner(text)
    try:
        process, pid = str(owner["process"]), int(owner["pid"])
    except (ValueError, KeyError, TypeError):
        return None
    here = _process(os.getpid())
    if not here or process.split()[:2] != here.split()[:2]:
        return None
    return _process(pid) == process


def _is_abandoned(name: str, text: str) -> bool:
    """Return whether this very process put a lease, and ended its work without deleting the lease."""
    return name not in _held and _parse_owner(text)["process"] == _process(os.getpid())


def _is_holder(text: str) -> bool:
    return _parse_owner(text).get("state") != _WANTS


def _who(text: str) -> str:
    owner = _parse_owner(text)
    return f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= owner.keys() else "of an unknown process"


def _process(pid: int) -> str:
    """Identify a running process of this machine by boot, pid namespace, pid and start time; empty if not in /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        state, *rest = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return "" if state == "Z" else f"{boot} {Path('/proc/self/ns/pid').readlink()} {pid} {rest[18]}"
    except OSError:
        return ""
