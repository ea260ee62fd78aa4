"""A process that writes a store until it is killed, and a model of what must be there afterwards."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator

from rmq_core.store.config import StoreConfig
from rmq_core.store.dispatch.kernel_loading import load_kernels
from rmq_core.store.files.disk import Disk
from rmq_core.store.store import MessageStore
from tests.store.small_stores import NOW_MS, opened, put_any

_ANSWER_S = 60.0
_LONGEST_S = 120
_ROUND_MS = 1_000_000
_NUMBER_BYTES = 8


class DeadlyDisk(Disk):
    """A disk at whose n-th change, half of them before and half after it, the process dies."""

    def __init__(self, changes_left: int) -> None:
        self.changes_left = changes_left

    def _around(self, change: Callable[[], int | None]) -> int | None:
        self._count()
        result = change()
        self._count()
        return result

    def _count(self) -> None:
        self.changes_left -= 1
        if self.changes_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        self._count()
        descriptor = super().create(path, size, allocate=allocate)
        self._count()
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._around(lambda: Disk.write(self, descriptor, data, offset))

    def zero(self, descriptor: int, begin: int, end: int) -> None:
        self._around(lambda: Disk.zero(self, descriptor, begin, end))

    def remove(self, path: str) -> None:
        self._around(lambda: Disk.remove(self, path))

    def replace(self, path: str, data: bytes) -> None:
        self._around(lambda: Disk.replace(self, path, data))

    def sync(self, descriptor: int) -> None:
        self._around(lambda: Disk.sync(self, descriptor))

    def sync_directory(self, path: str) -> None:
        self._around(lambda: Disk.sync_directory(self, path))


def messages(store: MessageStore, seed: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Append the messages of a seed, on and on; where each ends, and where its records stand."""
    source = random.Random(seed)
    number = 0
    while True:
        result = put_any(store, source, number, NOW_MS + seed * _ROUND_MS + number * 10)
        yield result.end_offset, result.physical_offsets or (result.physical_offset,)
        number += 1


def write_until_killed(config: StoreConfig, seed: int, *, after_s: float | None = None, at_change: int = 0) -> int:
    """Have a process open a store and write the messages of a seed, and kill it.

    Args:
        config: of the store.
        seed: of the messages.
        after_s: kill it so long after its first acknowledgement.
        at_change: or have it die at that change of the disk, from opening on.

    Returns:
        Physical offset below which it had acknowledged all; 0 if it got to none.
    """
    load_kernels()  # no thread may import them while this forks
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _write(config, seed, writing, at_change)
    os.close(writing)
    told = os.read(reading, _NUMBER_BYTES)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        told += pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer failed; see what it wrote to stderr"
    assert os.WTERMSIG(status) == signal.SIGKILL
    whole = len(told) // _NUMBER_BYTES * _NUMBER_BYTES
    return int.from_bytes(told[whole - _NUMBER_BYTES : whole], "big")


def _write(config: StoreConfig, seed: int, writing: int, at_change: int) -> None:
    signal.alarm(_LONGEST_S)  # a writer that hangs must not have its test wait for good
    try:
        store = opened(config, NOW_MS, DeadlyDisk(at_change))
        source = random.Random(-seed)
        for end, _ in messages(store, seed):
            if source.randrange(7) == 0:
                store.dispatch()
                if store.wait_flushed(end, _ANSWER_S):
                    os.write(writing, end.to_bytes(_NUMBER_BYTES, "big"))
                    store.dispatch()
    except BaseException as error:  # nothing may get back into pytest
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    os._exit(1)


class Model:
    """A store that was never killed, which is given what a killed one was found to have."""

    def __init__(self, config: StoreConfig) -> None:
        self.store = opened(config)
        self.record_count = 0

    def follow(self, seed: int, found: list[tuple[int, bytes]]) -> None:
        """Check that the records of a recovered store are the first of a seed's, after those known; know them too."""
        if self.record_count == len(found):
            return
        log = self.store._log
        if found[self.record_count][0] == log.start + log.file_bytes:  # killed between a BLANK and the record after it
            assert self.store.appender.roll()
        for _, offsets in messages(self.store, seed):
            for offset in offsets:
                assert self.record_count < len(found), "a part of a batch"
                record = self.store.record(offset)
                assert record is not None
                assert found[self.record_count] == (offset, bytes(record))
                self.record_count += 1
            if self.record_count == len(found):
                break
        self.store.dispatch()
