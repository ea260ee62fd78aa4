"""How far a selection has landed in a Delta table, by what the table holds now.

The transaction identifier alone does not tell: RESTORE leaves it as it was, a clone does not have it, and
``delta.setTransactionRetentionDuration`` drops it. So the commits of the table's log are read as well, from the newest
one back to the last one of the selection: a single one, where nobody else has written since. Where these are cleaned
up, the newest row that has landed tells: a RESTORE to before it takes it away.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What one commit of a table's log says.

    Attributes:
        operation: by Delta's name, such as ``RESTORE``.
        restored_version: table version that a RESTORE went back to; None if it is no RESTORE, or unknown.
        versions: transaction versions that it sets, by application id.
        metadata: user metadata.
    """

    operation: str
    restored_version: int | None
    versions: dict[str, int]
    metadata: str | None


class CommitHistory(Protocol):
    """Log of a table."""

    def commit(self, version: int) -> TableCommit | None:
        """Read a commit; None if it was cleaned up."""
        ...


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far a selection has landed.

    Attributes:
        verified_offset: physical offset up to which the table is known to hold it; -1 if that is nothing.
        recorded_offset: physical offset up to which it has landed at some time; None if that is unknown.
        fault: why the two differ; None if they do not.
        metadata: what its last commit says of the log; None if nothing is known.
    """

    verified_offset: int
    recorded_offset: int | None
    fault: str | None = None
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
    """Find how far a selection has landed in one version of a table.

    Args:
        commits: the table's log.
        version: of the table.
        app_id: transaction identifier of the selection.
        transaction_version: its transaction version there, a physical offset; -1 if there is none.
        find_lost_row: tells where a selection's newest row was, if it is not there any more; else None.
        is_complete: whether no transaction version can have been dropped or left behind.
    """
    if transaction_version < 0 and is_complete:
        return ExportProgress(-1, -1)
    last_commit = _last_commit(commits, version, app_id, follow=True)
    if last_commit is _CLEANED_UP and transaction_version >= 0:
        return _progress_without_commits(transaction_version, find_lost_row(app_id))
    recorded_offset = (
        transaction_version
        if transaction_version >= 0
        else _offset(_last_commit(commits, version, app_id, follow=False), app_id)
    )
    verified_offset = _offset(last_commit, app_id)
    if verified_offset is None or recorded_offset is None:
        fault = "its log does not tell how far it has landed: it was cloned or restored, or lost its transactions"
        return ExportProgress(-1, recorded_offset, f"{fault}; --from-offset N lands what is missing from there on")
    if verified_offset != recorded_offset:
        begin = max(verified_offset, 0)
        fault = f"was restored to what it held up to {begin}, and had landed up to {recorded_offset}"
        remedy = (
            f"--from-offset {begin} lands again what is missing, --from-offset {recorded_offset} goes on without it"
        )
        return ExportProgress(verified_offset, recorded_offset, f"{fault}; {remedy}")
    return ExportProgress(verified_offset, recorded_offset, metadata=last_commit.metadata)


def _progress_without_commits(recorded_offset: int, lost_row: str | None) -> ExportProgress:
    """Judge an identifier whose commits are cleaned up: a RESTORE may have been among them, and leaves it as it was."""
    if lost_row is None:
        return ExportProgress(recorded_offset, recorded_offset)
    fault = (
        f"has landed up to {recorded_offset}, but its newest row, {lost_row}, is gone, and the commits that would "
        "tell whether it was deleted or the table restored are cleaned up"
    )
    remedy = f"--from-offset 0 lands again what is missing, --from-offset {recorded_offset} goes on without it"
    return ExportProgress(-1, recorded_offset, f"{fault}; {remedy}")


def last_metadata(commits: CommitHistory, version: int, prefix: str) -> str | None:
    """Return what the last commit that made a version's content says of the log, of all selections of one store.

    Args:
        commits: the table's log.
        version: of the table.
        prefix: of the selections' transaction identifiers.
    """
    while version >= 0:
        commit = commits.commit(version)
        if commit is None or commit.operation == "CLONE":
            return None
        if any(name.startswith(prefix) for name in commit.versions):
            return commit.metadata
        restored_version = commit.restored_version if commit.operation == "RESTORE" else None
        if restored_version is not None and restored_version >= version:
            return None
        version = version - 1 if restored_version is None else restored_version
    return None


_NONE = TableCommit("", None, {}, None)  # none was ever made
_CLEANED_UP = TableCommit("", None, {}, None)
_UNKNOWN = TableCommit("", None, {}, None)


def _offset(commit: TableCommit, app_id: str) -> int | None:
    return -1 if commit is _NONE else commit.versions.get(app_id)


def _last_commit(commits: CommitHistory, version: int, app_id: str, *, follow: bool) -> TableCommit:
    """Find the selection's last commit, of those that made the content if ``follow``, else of all."""
    has_followed_restore = False
    while version >= 0:
        commit = commits.commit(version)
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
    return _NONE
