"""Life cycle of a write by several processes: begun by the driver, done by tasks, committed or aborted by the driver.

Tasks write below ``.rmq-write`` of the directory. Of two writes the later one wins: it clears what the earlier
one has written, whose tasks and commit then fail.
"""

import json
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import OptionError, StoreError, told_as_store_errors
from rmq_formats.tasks.publish import clear_work, finish_publishing, is_publishing, write_forced
from rmq_formats.tasks.store_lock import store_lock

WORK_DIRECTORY: Final = ".rmq-write"
_NOTE: Final = "write.json"


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Handle of a write that has begun, passed to its tasks.

    Attributes:
        root: of the store that is written to.
        number: identifies this write into the store.
        now_ms: when it began.
    """

    root: str
    number: str
    now_ms: int

    @property
    def work(self) -> Path:
        """Directory where everything is written until it is published."""
        return Path(self.root) / WORK_DIRECTORY

    @property
    def pieces(self) -> Path:
        """Directory where tasks write their pieces."""
        return self.work / f"pieces-{self.number}"

    def check_own(self) -> None:
        """Raise StoreError if another write has begun since."""
        try:
            note = json.loads((self.work / _NOTE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            note = {}
        if note.get("number") != self.number:
            raise StoreError(f"{self.root}: another write into this store has begun; this one cannot be committed")

    def abort(self) -> None:
        """Remove the work directory, unless another write has begun since.

        A publication that has begun is left for the next write to finish.
        """
        try:
            self.check_own()
        except StoreError:
            return
        if not is_publishing(self.work):
            shutil.rmtree(self.work, ignore_errors=True)


def check_target(root: str) -> None:
    """Refuse a target that cannot be written to.

    Raises:
        OptionError: not a local one.
        StoreLockedError: a broker has the store.
        StoreError: no directory.
    """
    if "://" in root:
        raise OptionError(f"{root}: a store is written to a local directory; copy it to the object store afterwards")
    if Path(root).exists() and not Path(root).is_dir():
        raise StoreError(f"{root}: is no directory")
    if Path(paths.lock_file(root)).exists():
        with store_lock(root):
            pass


def begin_job(root: str) -> WriteJob:
    """Create the directory of a write, after ending what other writes have begun.

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
            write_forced(job.work / _NOTE, json.dumps({"number": job.number}).encode())
    return job
