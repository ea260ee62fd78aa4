"""A checkpoint that makes the next start short, for a store whose files prove it."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.errors import OptionError, StoreError
from rmq_formats.read.log_end import readable_segments
from rmq_formats.storage.contained import parent_directory, read_file, replace_file
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.diagnosis.recovery import StartEstimate, estimate_start
from rmq_offline.repair.checkpoint import fresh_checkpoint, write_checkpoint
from rmq_offline.tasks.runner import Runner
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions

_PROOF: Final = ("commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "dledger")
_HARMLESS: Final = frozenset({"index.missing"})  # then the checkpoint says that no Index is on disk


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint that is planned or written.

    Attributes:
        against: findings that forbid the checkpoint: log, queues and Index do not agree up to the log's end.
        before: estimate with the present checkpoint; ``after`` is with the new one.
        quarantine: directory with the former file; None if nothing was written.
    """

    store: str
    checkpoint: Checkpoint
    against: tuple[Finding, ...]
    before: StartEstimate | None
    after: StartEstimate | None
    quarantine: str | None = None
    is_applied: bool = False


def make_checkpoint(store: str, options: VerifyOptions, runner: Runner, *, apply: bool) -> CheckpointReport:
    """Plan or write a checkpoint: the store is verified first.

    Raises:
        OptionError: a store in an object store.
        StoreLockedError: a running broker has the store, and the checkpoint is to be written.
        StoreError: a file cannot be read or written.
    """
    if "://" in store:
        raise OptionError(f"{store}: a checkpoint is made on a local disk or a shared mount")
    readable_segments(open_store(store))  # before the lock, which is a file
    with store_lock(store) if apply else nullcontext():
        report = verify_store(store, options, runner)
        against = tuple(finding for finding in report.findings if _is_against(finding))
        files = open_store(store)
        segments = readable_segments(files)
        checkpoint = fresh_checkpoint(Path(store))
        before = estimate_start(files, segments)
        after = estimate_start(files, segments, checkpoint)
        planned = CheckpointReport(store, checkpoint, against, before, after)
        if against or not apply:
            return planned
        quarantine = _quarantine_checkpoint(store)
        write_checkpoint(Path(store))
        return replace(planned, quarantine=quarantine, is_applied=True)


def _is_against(finding: Finding) -> bool:
    area = finding.kind.code.partition(".")[0]
    is_fault = finding.kind.severity is not Severity.INFO
    return is_fault and area in _PROOF and finding.kind.code not in _HARMLESS


def _quarantine_checkpoint(store: str) -> str | None:
    """Copy the checkpoint to the quarantine; return the copy's path."""
    former = read_file(store, paths.checkpoint_file("").lstrip("/"))
    if former is None:
        return None
    number = 1
    while Path(store, f"quarantine/checkpoint-{number:04d}").exists():
        number += 1
    name = f"quarantine/checkpoint-{number:04d}/checkpoint"
    try:
        with parent_directory(store, name, create=True) as (directory, last):
            replace_file(directory, last, former)
    except OSError as error:
        raise StoreError(f"{store}/{name}: cannot be written ({error.strerror})") from error
    return f"{store}/{name}"
