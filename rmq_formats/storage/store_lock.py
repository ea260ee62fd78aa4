"""File locks: the store's lock, common to brokers and writers, and a lock for other target directories.

The lock's file may have been deleted under a running broker, so a log that another process writes is refused as well.
Checks for locks of other processes lock no file: a check must block nobody.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.storage.contained import open_file, read_file

# struct flock of Linux on 64-bit machines: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("@hhqqi")
_LAST_FILES: Final = 16  # of a log; a broker has all of them open, and surely the last ones
_PID_BYTES: Final = 32
_PROC: Final = Path("/proc")
LOCK_NAME: Final = ".rmq-rebuild.lock"  # of a directory that is no store


@contextmanager
def store_lock(root: str) -> Iterator[None]:
    """Acquire the lock of the store at ``root``, which a running broker has locked.

    It is a POSIX record lock on the first byte of the file ``lock``, as ``DefaultMessageStore#start`` acquires it
    (``FileChannel#tryLock(0, 1, false)``).

    Raises:
        StoreLockedError: a running broker has it, or has the log open though its lock's file was deleted.
        StoreError: the lock's file cannot be written.
    """
    path = Path(paths.lock_file(root))
    was_there = os.path.lexists(path)
    try:
        descriptor = open_file(root, path.name, os.O_RDWR | os.O_CREAT, may_be_linked=True)
    except OSError as error:
        raise StoreError(f"{path}: the store cannot be locked ({error.strerror})") from error
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise StoreLockedError(f"{root}: a running broker has locked this store; stop it first") from None
        try:
            refuse_open_log(root)
        except StoreLockedError:
            if not was_there:
                path.unlink(missing_ok=True)
            raise
        yield
    finally:
        os.close(descriptor)


@contextmanager
def directory_lock(root: str) -> Iterator[None]:
    """Acquire the rebuild lock of a directory that is no store; the directory is created if need be.

    The lock is held on a file that is deleted in the end. A killed process leaves the file, but no lock; a lock of the
    directory itself would be inherited by forked processes.

    Raises:
        StoreLockedError: another process has the lock.
        StoreError: the directory cannot be made, or not be written.
    """
    path = Path(root) / LOCK_NAME
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        descriptor = _open_locked(path)
    except BlockingIOError:
        raise StoreLockedError(f"{root}: another rebuild writes there; let it end first") from None
    except FileExistsError:
        raise StoreError(f"{root}: cannot be written (Not a directory)") from None
    except OSError as error:
        raise StoreError(f"{root}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """Lock the file that is at the path now, and return its descriptor. Raises OSError."""
    while True:
        descriptor = open_file(path.parent, path.name, os.O_RDWR | os.O_CREAT, may_be_linked=True)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # the holder has ended, and deleted the file
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def refuse_open_log(root: str) -> None:
    """Refuse a store whose log another process has open for writing. Raises StoreLockedError, naming the process."""
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


def is_locked(path: str, size_bytes: int = 0) -> bool:
    """Return whether another process of this machine has a POSIX record lock on a file, or on its first bytes.

    Args:
        path: of the file; one that cannot be opened is not locked.
        size_bytes: from the file's begin; 0 is all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
    except OSError:
        return False
    try:
        question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, size_bytes, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question)[: _FLOCK.size])
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(answer[0] != fcntl.F_UNLCK)


def is_open_for_writing(path: str) -> bool | None:
    """Return whether a process of this machine, this one too, has a regular file open for writing; no link is followed.

    A read lease (``F_SETLEASE``), which the system grants if there is no writer, is acquired and released at once. None
    if the system does not answer: for another user's file, or on a file system without leases.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
