"""Life cycle of a write by several processes: begun by the driver, done by tasks, committed or aborted by the driver.

Tasks write below ``.rmq-write`` of the directory. Of two writes the later one wins: it clears what the earlier
one has written, whose tasks and commit then fail.
"""

import json
import shutil
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from rmq_formats.arrow.encode import EncodeOptions
from rmq_formats.errors import StoreError, os_errors_as_store_errors
from rmq_formats.storage.segments import WRITE_DIRECTORY
from rmq_formats.storage.store_lock import refuse_locked_store, store_lock
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.publish import WRITTEN, clear_work, finish_publishing, is_publishing, write_fsynced
from rmq_offline.write.piece import WrittenTask, write_pieces

NOTE: Final = "write.json"


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Handle of a write that has begun, passed to its tasks; ``number`` identifies the write."""

    root: str
    number: str
    now_ms: int

    @property
    def work(self) -> Path:
        """Directory where everything is written until it is published."""
        return Path(self.root) / WRITE_DIRECTORY

    @property
    def pieces(self) -> Path:
        """Directory where tasks write their pieces."""
        return self.work / f"pieces-{self.number}"

    def write_task(self, batches: Iterable[pa.RecordBatch], options: EncodeOptions) -> WrittenTask:
        """Write the pieces of one task; see ``write_pieces``."""
        return write_pieces(batches, self.pieces, options)

    def check_own(self) -> None:
        """Raise StoreError if another write has begun since."""
        try:
            text = (self.work / NOTE).read_text(encoding="utf-8")
        except FileNotFoundError:
            text = ""
        check_number(self.root, text, self.number)

    def abort(self) -> None:
        """Remove the work directory, unless another write, or the publication, has begun since."""
        try:
            self.check_own()
        except StoreError:
            return
        if not is_publishing(self.work):
            shutil.rmtree(self.work, ignore_errors=True)


def check_number(root: str, note: str, number: str) -> None:
    """Raise StoreError if another write has begun since, by the note of the last one; empty if there is none."""
    try:
        begun = json.loads(note).get("number")
    except (ValueError, AttributeError, RecursionError):  # also for an empty note
        begun = None
    if begun != number:
        raise StoreError(f"{root}: another write into this store has begun; this one cannot be committed")


def check_target(root: str) -> None:
    """Refuse a local target that is no directory. Raises StoreError, StoreLockedError for a running broker."""
    if Path(root).exists() and not Path(root).is_dir():
        raise StoreError(f"{root}: is no directory")
    refuse_locked_store(root)


def begin_job(root: str, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE) -> WriteJob:
    """Create the directory of a write, after ending what other writes have begun.

    Raises:
        StoreLockedError: a broker has the store.
        StoreError: the directory cannot be written to, or has a foreign publication.
    """
    job = WriteJob(root, uuid.uuid4().hex, int(time.time() * 1000))
    with os_errors_as_store_errors(root):
        Path(root).mkdir(parents=True, exist_ok=True)
        with store_lock(root):
            finish_publishing(job.work, Path(root), WRITTEN, leftover)
            clear_work(job.work, [job.pieces.name, "new"])
            write_fsynced(job.work / NOTE, json.dumps({"number": job.number}).encode())
    return job


def end_killed_write(root: str, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE) -> bool:
    """Complete the publication of a killed write; False if there is none. Raises as ``begin_job``."""
    work = Path(root) / WRITE_DIRECTORY
    if not is_publishing(work):
        return False
    with os_errors_as_store_errors(root), store_lock(root):
        return finish_publishing(work, Path(root), WRITTEN, leftover)
