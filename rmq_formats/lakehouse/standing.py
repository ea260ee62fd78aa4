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
class Commit:
    """What one commit of a table's log says.

    Attributes:
        operation: by Delta's name, such as ``RESTORE``.
        restored: table version that a RESTORE went back to; None if it is no RESTORE, or the version is unknown.
        versions: transaction versions that it sets, by application id.
        note: user metadata.
    """

    operation: str
    restored: int | None
    versions: dict[str, int]
    note: str | None


class Commits(Protocol):
    """Log of a table."""

    def commit(self, version: int) -> Commit | None:
        """Read a commit; None if it was cleaned up."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a selection has landed.

    Attributes:
        landed: physical offset up to which the table is known to hold it; -1 if that is nothing.
        claimed: physical offset up to which it has landed at some time; None if that is unknown.
        fault: why the two differ; None if they do not.
        note: what its last commit says of the log; None if nothing is known.
    """

    landed: int
    claimed: int | None
    fault: str | None = None
    note: str | None = None


def standing(
    commits: Commits,
    version: int,
    app_id: str,
    identified: int,
    lost_row: Callable[[str], str | None],
    *,
    is_complete: bool,
) -> Standing:
    """Find how far a selection has landed in one version of a table.

    Args:
        commits: the table's log.
        version: of the table.
        app_id: transaction identifier of the selection.
        identified: its transaction version there, a physical offset; -1 if there is none.
        lost_row: tells where a selection's newest row was, if it is not there any more; else None.
        is_complete: whether no transaction version can have been dropped or left behind.
    """
    if identified < 0 and is_complete:
        return Standing(-1, -1)
    content = _last(commits, version, app_id, follow=True)
    if content is _CLEANED and identified >= 0:
        return _unseen(identified, lost_row(app_id))
    claimed = identified if identified >= 0 else _offset(_last(commits, version, app_id, follow=False), app_id)
    landed = _offset(content, app_id)
    if landed is None or claimed is None:
        fault = "its log does not tell how far it has landed: it was cloned or restored, or lost its transactions"
        return Standing(-1, claimed, f"{fault}; --from-offset N lands what is missing from there on")
    if landed != claimed:
        begin = max(landed, 0)
        fault = f"was restored to what it held up to {begin}, and had landed up to {claimed}"
        again = f"--from-offset {begin} lands again what is missing, --from-offset {claimed} goes on without it"
        return Standing(landed, claimed, f"{fault}; {again}")
    return Standing(landed, claimed, note=content.note)


def _unseen(claimed: int, lost: str | None) -> Standing:
    """Judge an identifier whose commits are cleaned up: a RESTORE may have been among them, and leaves it as it was."""
    if lost is None:
        return Standing(claimed, claimed)
    fault = (
        f"has landed up to {claimed}, but its newest row, {lost}, is gone, and the commits that would tell whether "
        "it was deleted or the table restored are cleaned up"
    )
    again = f"--from-offset 0 lands again what is missing, --from-offset {claimed} goes on without it"
    return Standing(-1, claimed, f"{fault}; {again}")


def last_note(commits: Commits, version: int, prefix: str) -> str | None:
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
            return commit.note
        restored = commit.restored if commit.operation == "RESTORE" else None
        if restored is not None and restored >= version:
            return None
        version = version - 1 if restored is None else restored
    return None


_NONE = Commit("", None, {}, None)  # none was ever made
_CLEANED = Commit("", None, {}, None)
_UNKNOWN = Commit("", None, {}, None)


def _offset(commit: Commit, app_id: str) -> int | None:
    return -1 if commit is _NONE else commit.versions.get(app_id)


def _last(commits: Commits, version: int, app_id: str, *, follow: bool) -> Commit:
    """Find the selection's last commit, of those that made the content if ``follow``, else of all."""
    moved = False
    while version >= 0:
        commit = commits.commit(version)
        if commit is None:
            return _UNKNOWN if moved else _CLEANED
        if app_id in commit.versions:
            return commit
        if commit.operation == "CLONE":
            return _UNKNOWN
        if follow and commit.operation == "RESTORE":
            if commit.restored is None or commit.restored >= version:
                return _UNKNOWN
            version, moved = commit.restored, True
        else:
            version -= 1
    return _NONE
