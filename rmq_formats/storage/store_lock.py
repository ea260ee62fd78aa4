"""File locks: the store's lock, common to brokers and writers, and a lock for other target directories.

The lock's file may have been deleted under a running broker, so a log that another process writes is refused as well.
Checks for locks of other processes lock no file: a check must block nobody.

A broker locks the first byte of the store's lock file, as RocketMQ does, and a tool the first two bytes. So a reader
sees that a tool holds the lock: the queues of a killed broker may lack units then (``is_locked_by_broker``).

The locks are POSIX record locks. A process never conflicts with its own ones, and closing any descriptor of a locked
file releases them. So this module records what its process has locked, and opens no such file again (``fcntl(2)``).
"""

import fcntl
import os
import signal
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.storage.contained import open_file, read_file

# struct flock of Linux on 64-bit machines: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("@hhqqi")
_BROKER_LOCK_BYTES: Final = 1
_TOOL_LOCK_BYTES: Final = 2
_LAST_FILES: Final = 16  # of a log; a broker has all of them open, and surely the last ones
_PID_BYTES: Final = 32
_PROC: Final = Path("/proc")
LOCK_NAME: Final = ".rmq-rebuild.lock"  # of a directory that is no store


@dataclass(frozen=True, slots=True)
class _ProcessLock:
    """Lock of this process: its root, its file by device and inode, and whether a broker of this process has it."""

    root: str
    device: int
    inode: int
    is_broker: bool


_process_locks: list[_ProcessLock] = []
_process_locks_guard = threading.Lock()


def _forget_process_locks() -> None:
    """Forget the locks of the parent, which a forked process does not have."""
    global _process_locks_guard  # noqa: PLW0603 # another thread of the parent may have had it
    _process_locks.clear()
    _process_locks_guard = threading.Lock()


os.register_at_fork(after_in_child=_forget_process_locks)


def _find_process_lock(path: str) -> _ProcessLock | None:
    """Return this process's lock of the file at a path; the file may be another one than that of the lock's root."""
    with suppress(OSError):
        status = Path(path).stat()
        return next(
            (lock for lock in _process_locks if (lock.device, lock.inode) == (status.st_dev, status.st_ino)), None
        )
    return None


@contextmanager
def _record_lock(root: str, descriptor: int, *, is_broker: bool) -> Iterator[None]:
    """Record the lock of an open file, and close the file at the end of the ``with`` block."""
    status = os.fstat(descriptor)
    lock = _ProcessLock(os.path.realpath(root), status.st_dev, status.st_ino, is_broker)
    _process_locks.append(lock)
    try:
        yield
    finally:
        with _process_locks_guard:
            os.close(descriptor)
            _process_locks[:] = [other for other in _process_locks if other is not lock]


@contextmanager
def store_lock(root: str, *, is_broker: bool = False, log_directory: str | None = None) -> Iterator[None]:
    """Acquire the lock of the store at ``root``, which a running broker has locked.

    It is a POSIX record lock from the first byte of the file ``lock`` on, as ``DefaultMessageStore#start`` acquires it
    (``FileChannel#tryLock(0, 1, false)``).

    Args:
        is_broker: whether a broker acquires it, and no tool.
        log_directory: of the CommitLog; that of ``configured_log_directories`` or the store's own by default.

    Raises:
        StoreLockedError: a running broker has it, or has the log open though its lock's file was deleted; or this
            process has it.
        StoreError: the lock's file cannot be written.
    """
    path = Path(paths.lock_file(root))
    with ExitStack() as stack:
        with _process_locks_guard:
            _refuse_second_lock(root, str(path))
            was_there = os.path.lexists(path)
            try:
                descriptor = open_file(root, path.name, os.O_RDWR | os.O_CREAT, may_be_linked=True)
            except OSError as error:
                raise StoreError(f"{path}: the store cannot be locked ({error.strerror})") from error
            try:
                fcntl.lockf(
                    descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _BROKER_LOCK_BYTES if is_broker else _TOOL_LOCK_BYTES, 0
                )
            except OSError:
                os.close(descriptor)
                raise StoreLockedError(f"{root}: a running broker has locked this store; stop it first") from None
            stack.enter_context(_record_lock(root, descriptor, is_broker=is_broker))
        try:
            refuse_open_log(root, log_directory)
        except StoreLockedError:
            if not was_there:
                path.unlink(missing_ok=True)
            raise
        yield


def refuse_locked_store(root: str) -> None:
    """Refuse a local store whose broker runs. No lock file is made. Raises as ``store_lock``."""
    if Path(paths.lock_file(root)).exists():
        with store_lock(root):
            pass


def _refuse_second_lock(root: str, path: str) -> None:
    """Refuse a second lock of a root, or of the same file. Raises StoreLockedError."""
    if _find_process_lock(path) is not None or any(lock.root == os.path.realpath(root) for lock in _process_locks):
        raise StoreLockedError(f"{root}: this process has the store open already. Close it first.")


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
    with ExitStack() as stack:
        with _process_locks_guard:
            try:
                Path(root).mkdir(parents=True, exist_ok=True)
                if _find_process_lock(str(path)) is not None:
                    raise BlockingIOError
                descriptor = _open_locked(path)
            except BlockingIOError:
                raise StoreLockedError(f"{root}: another rebuild writes there; let it end first") from None
            except FileExistsError:
                raise StoreError(f"{root}: cannot be written (Not a directory)") from None
            except OSError as error:
                raise StoreError(f"{root}: cannot be written ({error.strerror})") from error
            stack.enter_context(_record_lock(root, descriptor, is_broker=False))
        stack.callback(path.unlink, missing_ok=True)
        yield


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


def refuse_open_log(root: str, log_directory: str | None = None) -> None:
    """Refuse a store whose log another process has open for writing. Raises StoreLockedError, naming the process."""
    doubtful, log_files = False, list(_log_files(root, log_directory))
    for path in log_files:
        is_open = is_open_for_writing(path)
        if is_open and not _is_used_by("self", path):
            writer = _writer(root, path)
            raise StoreLockedError(f"{root}: {writer} has its log open for writing, without the lock. Stop it first")
        doubtful |= is_open is None
    pid = _pid_of_abort(root)
    if doubtful and pid is not None and pid != os.getpid():
        for path in log_files:
            if _is_used_by(str(pid), path):
                raise StoreLockedError(f"{root}: {_name(str(pid))} has its log open, without the lock. Stop it first")


def _log_directories(root: str) -> list[str]:
    from rmq_formats.storage.store_files import configured_log_directories  # noqa: PLC0415 # a broker loads no pyarrow

    return configured_log_directories(root) or [paths.commitlog_dir(root)]


def _log_files(root: str, log_directory: str | None) -> Iterator[str]:
    """List the last files of each CommitLog of a store, DLedger's as well."""
    directories = [log_directory] if log_directory else _log_directories(root)
    for directory in (*map(Path, directories), *sorted(Path(root).glob("dledger-*/data"))):
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


def is_locked(path: str) -> bool:
    """Return whether another process of this machine, or a broker of this one, has locked a file.

    ``path`` is that of the file; one that cannot be opened is not locked.
    """
    return _lock_bytes(path) is not None


def is_locked_by_broker(root: str) -> bool:
    """Return whether a broker of this machine has locked the store at ``root``, and no tool."""
    return _lock_bytes(paths.lock_file(root)) not in {None, _TOOL_LOCK_BYTES}


def _lock_bytes(path: str) -> int | None:
    """Return the size of the lock that another process, or a broker of this one, has on a file; None without a lock."""
    with _process_locks_guard:
        process_lock = _find_process_lock(path)
        if process_lock is not None:
            return _BROKER_LOCK_BYTES if process_lock.is_broker else None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
        except OSError:
            return None
        try:
            question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, size_bytes, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question)[: _FLOCK.size])
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None if kind == fcntl.F_UNLCK else int(size_bytes)


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
        # Who opens the file meanwhile breaks the lease, by a signal whose default would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
