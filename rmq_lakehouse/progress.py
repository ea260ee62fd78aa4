"""Progress of an export in a table, verified against the commits of the table.

A transaction version alone proves nothing: RESTORE leaves it unchanged, a clone lacks it, and
``delta.setTransactionRetentionDuration`` expires it. So ``read_progress`` also reads commits, from the newest one back
to the last commit of the export. This is a single commit if nobody else has written since. If the commits were cleaned
up, the high watermark decides: RESTORE to an earlier version removes the watermark row.

Example: an export commits up to offset 900, and the owner restores the version that the export committed at 500. The
transaction version still says 900 (``recorded_offset``). The last commit that made the content says 500
(``verified_offset``). The export stops with both offsets, and the user chooses where it resumes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TableCommit:
    """Commit of a table's log.

    Attributes:
        operation: Delta's name of the operation, such as ``RESTORE``.
        restored_version: table version that a RESTORE restored; None if unknown.
        versions: transaction versions that the commit sets, by application id.
    """

    operation: str
    restored_version: int | None
    versions: dict[str, int]
    metadata: str | None
    transaction_id: str | None = None


class CommitHistory(Protocol):
    """Commits of a table's log."""

    def read_commit(self, version: int) -> TableCommit | None:
        """Read a commit; None if it was cleaned up."""


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """Offset up to which the messages of a selection are committed, and the evidence for this offset.

    Attributes:
        verified_offset: physical offset up to which the table contains the messages; -1 without messages.
        recorded_offset: physical offset of the last commit of the selection; None if unknown.
        fault: reason why the two offsets differ.
        remedy: options by which an export of one store goes on; empty without a fault.
        metadata: metadata of the selection's last commit; None if unknown.
    """

    verified_offset: int
    recorded_offset: int | None
    fault: str | None = None
    remedy: str = ""
    metadata: str | None = None


def read_progress(
    commits: CommitHistory,
    version: int,
    app_id: str,
    transaction_version: int,
    find_lost_row: Callable[[str], str | None],
    *,
    is_complete: bool,
) -> ExportProgress:
    """Read the progress of a selection from one version of a table.

    Args:
        transaction_version: transaction version of ``app_id`` in the table version, a physical offset; -1 without one.
        find_lost_row: returns where a missing watermark row of an application id was; None if no row is missing.
        is_complete: whether the table cannot have lost a transaction version.
    """
    if transaction_version < 0 and is_complete:
        return ExportProgress(-1, -1)
    last_commit = _last_commit(commits, version, app_id, follow=True)
    if last_commit is _CLEANED_UP and transaction_version >= 0:
        return _progress_without_commits(transaction_version, find_lost_row(app_id))
    recorded_offset: int | None = transaction_version
    if transaction_version < 0:
        recorded_offset = _offset(_last_commit(commits, version, app_id, follow=False), app_id)
    return _compare_offsets(_offset(last_commit, app_id), recorded_offset, last_commit.metadata)


def _compare_offsets(verified_offset: int | None, recorded_offset: int | None, metadata: str | None) -> ExportProgress:
    if verified_offset is None or recorded_offset is None:
        fault = "export progress is missing from the table's history (cloned, restored, or transaction ids expired)"
        return ExportProgress(-1, recorded_offset, fault, "--from-offset N exports missing messages from N on")
    if verified_offset != recorded_offset:
        begin = max(verified_offset, 0)
        fault = f"table was restored: contains offsets below {begin}, last export committed {recorded_offset}"
        return ExportProgress(verified_offset, recorded_offset, fault, _remedy(begin, recorded_offset))
    return ExportProgress(verified_offset, recorded_offset, metadata=metadata)


def _progress_without_commits(recorded_offset: int, lost_row: str | None) -> ExportProgress:
    """Decide by the watermark row: a RESTORE may have been among the commits that were cleaned up."""
    if lost_row is None:
        return ExportProgress(recorded_offset, recorded_offset)
    fault = (
        f"last export committed {recorded_offset}, but its newest row, {lost_row}, is missing: the row was deleted, or "
        "the table was restored; the commits that would show which were cleaned up"
    )
    return ExportProgress(-1, recorded_offset, fault, _remedy(0, recorded_offset))


def _remedy(begin: int, recorded_offset: int) -> str:
    return f"--from-offset {begin} exports missing messages again, --from-offset {recorded_offset} goes on without them"


def last_metadata(commits: CommitHistory, version: int, prefix: str) -> str | None:
    """Return the metadata of the last commit that made the content of a table version, of ids with a prefix."""
    while version >= 0:
        commit = commits.read_commit(version)
        if commit is None or commit.operation == "CLONE":
            return None
        if any(name.startswith(prefix) for name in commit.versions):
            return commit.metadata
        restored_version = commit.restored_version if commit.operation == "RESTORE" else None
        if restored_version is not None and restored_version >= version:
            return None
        version = version - 1 if restored_version is None else restored_version
    return None


_NEVER_COMMITTED = TableCommit("", None, {}, None)
_CLEANED_UP = TableCommit("", None, {}, None)
_UNKNOWN = TableCommit("", None, {}, None)


def _offset(commit: TableCommit, app_id: str) -> int | None:
    return -1 if commit is _NEVER_COMMITTED else commit.versions.get(app_id)


def _last_commit(commits: CommitHistory, version: int, app_id: str, *, follow: bool) -> TableCommit:
    """Find the last commit of a selection: if ``follow``, among the commits that made the content, else among all."""
    has_followed_restore = False
    while version >= 0:
        commit = commits.read_commit(version)
        if commit is None:
            return _UNKNOWN if has_followed_restore else _CLEANED_UP
        if app_id in commit.versions:
            return commit
        if commit.operation == "CLONE":
            return _UNKNOWN
        if follow and commit.operation == "RESTORE":
            if commit.restored_version is None or commit.restored_version >= version:
                return _UNKNOWN
            version, has_followed_restore = commit.restored_version, True
        else:
            version -= 1
    return _NEVER_COMMITTED
