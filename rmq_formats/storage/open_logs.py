"""Finds who writes into a store without its lock: the lock's file may have been deleted under a running broker."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.storage.contained import read_file
from rmq_formats.storage.file_locks import is_open_for_writing

_LAST_FILES: Final = 16  # of a log; a broker has all of them open, and surely the last ones
_PID_BYTES: Final = 32
_PROC: Final = Path("/proc")


def refuse_open_log(root: str) -> None:
    """Refuse a store whose log another process has open for writing.

    Raises:
        StoreLockedError: naming the process, where it can be seen.
    """
    doubtful = False
    for path in _log_files(root):
        is_open = is_open_for_writing(path)
        if is_open and not _is_used_by("self", path):
            writer = _writer(root, path)
            raise StoreLockedError(f"{root}: {writer} has its log open for writing, without the lock. Stop it first")
        doubtful |= is_open is None
    pid = _pid_of_abort(root)
    if doubtful and pid is not None and pid != os.getpid():
        for path in _log_files(root):
            if _is_used_by(str(pid), path):
                raise StoreLockedError(f"{root}: {_name(str(pid))} has its log open, without the lock. Stop it first")


def _log_files(root: str) -> Iterator[str]:
    """List the last files of each CommitLog of a store, DLedger's as well."""
    for directory in (Path(paths.commitlog_dir(root)), *sorted(Path(root).glob("dledger-*/data"))):
        with suppress(OSError):
            names = sorted(name for name in os.listdir(directory) if paths.parse_segment_name(name) is not None)  # noqa: PTH208
            yield from (f"{directory}/{name}" for name in names[-_LAST_FILES:])


def _pid_of_abort(root: str) -> int | None:
    """Read the process id that a running broker has written into ``abort``."""
    with suppress(OSError, StoreError, ValueError):
        return int(read_file(root, "abort", _PID_BYTES) or b"")
    return None


def _writer(root: str, path: str) -> str:
    """Name the process that has a file open; that of ``abort`` is looked at first."""
    pid = _pid_of_abort(root)
    running_pids = (entry.name for entry in _PROC.iterdir() if entry.name.isdecimal()) if _PROC.is_dir() else iter(())
    for name in (*([str(pid)] if pid else []), *running_pids):
        if _is_used_by(name, path):
            return _name(name)
    return "another process"


def _name(pid: str) -> str:
    with suppress(OSError):
        return f"process {pid} ({(_PROC / pid / 'comm').read_text(errors='replace').strip()})"
    return f"process {pid}"


def _is_used_by(pid: str, path: str) -> bool:
    """Return whether a process, or ``self``, has a file mapped or open."""
    try:
        status = Path(path).stat()
    except OSError:
        return False
    ending = f"/{Path(path).name}".encode()
    with suppress(OSError):
        for line in (_PROC / pid / "maps").read_bytes().splitlines():
            if line.endswith(ending) and line.split(None, 5)[4] == str(status.st_ino).encode():
                return True
    with suppress(OSError):
        for entry in (_PROC / pid / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(entry.stat(), status):
                    return True
    return False
