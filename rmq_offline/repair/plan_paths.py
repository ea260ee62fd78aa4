"""Checks what a repair's plan names: it is read from a file in the store, and may be somebody else's.

A plan changes the log, moves files that are in the way, and restores config files. All of its paths are below the
directories that a repair works on, and none of its ranges is larger than a file of the log.
"""

import re
from collections.abc import Iterable
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError
from rmq_formats.storage.contained import split_path
from rmq_offline.repair.filler import Fill, LogRange
from rmq_offline.repair.plan import RepairPlan

_MAX_FILE_BYTES: Final = 1 << 31  # mappedFileSizeCommitLog is a Java int
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_WRITTEN_BYTES: Final = 1 << 10  # of an entry's head or a file's end mark, which are the only certain bytes
_MOVED: Final = re.compile(r"commitlog|consumequeue[A-Za-z_]*|batchconsumequeue|index|config|checkpoint|dledger-[^/]+")
_DLEDGER: Final = re.compile(r"dledger-[^/]+")
_CONFIG: Final = re.compile(r"config/[A-Za-z0-9_.-]+\.json")
_CHECKPOINT: Final = re.compile(r"committedIndex=-?[0-9]{1,19}\nendIndex=-?[0-9]{1,19}\n")


def check_plan(plan: RepairPlan) -> None:
    """Refuse a plan that names anything but what a repair changes.

    Raises:
        StoreError: naming the path.
    """
    for log_range in plan.stretches:
        _check_log_file(log_range.path)
        _check_range(log_range)
    for path, size_bytes in plan.sizes:
        _check_log_file(path)
        if not 0 <= size_bytes <= _MAX_FILE_BYTES:
            raise StoreError(f"{path!r}: {size_bytes} bytes, which no file of a log has")
    for path in plan.moves:
        if not _MOVED.fullmatch(split_path(path)[0]):
            raise _refusal(path)
    for path in plan.configs:
        split_path(path)
        if not _CONFIG.fullmatch(path):
            raise _refusal(path)
    if plan.entries is not None:
        (name, *rest) = split_path(plan.entries.directory)
        if rest or not _DLEDGER.fullmatch(name):
            raise _refusal(plan.entries.directory)
        if plan.entries.checkpoint is not None and not _CHECKPOINT.fullmatch(plan.entries.checkpoint):
            raise StoreError(f"{name}/checkpoint: {plan.entries.checkpoint!r} is no checkpoint of DLedger")


def changed_files(plan: RepairPlan) -> Iterable[str]:
    """List the log files that a plan writes into, creates or resizes."""
    return dict.fromkeys([*(log_range.path for log_range in plan.stretches), *(path for path, _ in plan.sizes)])


def _check_log_file(path: str) -> None:
    names = split_path(path)
    is_log = names[:-1] == ["commitlog"]
    is_entries = len(names) == 3 and _DLEDGER.fullmatch(names[0]) is not None and names[1] == "data"
    if not (is_log or is_entries) or paths.parse_segment_name(names[-1]) is None:
        raise _refusal(path)


def _check_range(log_range: LogRange) -> None:
    limit = _MAX_OFFSET if log_range.fill is Fill.NONE else _MAX_FILE_BYTES  # a file that is cut off may be of any size
    is_sound = (
        0 <= log_range.held <= log_range.size
        and log_range.position >= 0
        and log_range.position + log_range.size <= limit
        and len(log_range.written) <= 2 * min(log_range.size, _MAX_WRITTEN_BYTES)
    )
    if not is_sound:
        raise StoreError(
            f"{log_range.path!r}: {log_range.size} bytes at {log_range.position} are no range of a log's file"
        )


def _refusal(path: str) -> StoreError:
    return StoreError(f"{path!r}: not among the files that a repair changes")
