"""A write into a directory that takes several processes: begun by one, done by tasks, committed by another.

Tasks write below ``.rmq-write`` of the directory. Of two writes the later one counts: it clears what the earlier
one has written, whose tasks and commit then fail.
"""

import json
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_formats import paths
from rmq_formats.errors import OptionError, StoreError, told_as_store_errors
from rmq_formats.offline.lock import store_lock
from rmq_formats.offline.publish import clear_work, finish_publishing, is_publishing

WORK_DIRECTORY: Final = ".rmq-write"
_NOTE: Final = "write.json"


@dataclass(frozen=True, slots=True)
class WriteJob:
    """A write that has begun.

    Attributes:
        root: of the store that is written to.
        number: tells it from other writes into the store.
        now_ms: when it began.
    """

    root: str
    number: str
    now_ms: int

    @property
    def work(self) -> Path:
        """Where all is written until it is published."""
        return Path(self.root) / WORK_DIRECTORY

    @property
    def pieces(self) -> Path:
        """Where tasks write."""
        return self.work / f"pieces-{self.number}"

    def check_own(self) -> None:
        """Raise StoreError if another write has begun since."""
        try:
            note = json.loads((self.work / _NOTE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            note = {}
        if note.get("number") != self.number:
            raise StoreError(f"{self.root}: another write into this store has begun since this one did")

    def abort(self) -> None:
        """Remove what the write has left beside the store, unless another one has begun since.

        A publication that has begun is left for the next write to finish.
        """
        try:
            self.check_own()
        except StoreError:
            return
        if not is_publishing(self.work):
            shutil.rmtree(self.work, ignore_errors=True)


def check_target(root: str) -> None:
    """Refuse a place that cannot be written to.

    Raises:
        OptionError: not a local one.
        StoreLockedError: a broker has the store.
        StoreError: no directory.
    """
    if "://" in root:
        raise OptionError(f"{root}: a store is written to a directory; copy it to the object store then")
    if Path(root).exists() and not Path(root).is_dir():
        raise StoreError(f"{root}: is no directory")
    if Path(paths.lock_file(root)).exists():
        with store_lock(root):
            pass


def begin_job(root: str) -> WriteJob:
    """Make the directory of a write, after an end to what others have begun.

    Raises:
        StoreLockedError: a broker has the store.
        StoreError: it cannot be written to.
    """
    job = WriteJob(root, uuid.uuid4().hex, int(time.time() * 1000))
    with told_as_store_errors(root):
        Path(root).mkdir(parents=True, exist_ok=True)
        with store_lock(root):
            finish_publishing(job.work, Path(root))
            clear_work(job.work, [job.pieces.name, "new"])
            (job.work / _NOTE).write_text(json.dumps({"number": job.number}), encoding="utf-8")
    return job
