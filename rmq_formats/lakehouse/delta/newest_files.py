"""Which data files a Delta table's newest commits have added: enough to see that a table's files are gone."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

_COMMITS: Final = 10  # looked at: the newest may have added none, as one that only sets a transaction version


def newest_files(actions: Callable[[int], Iterable[bytes] | None], version: int) -> list[str]:
    """List the files of the newest commit that has added some which the table still has.

    Args:
        actions: gives the lines of a commit; None if it was cleaned up.
        version: of the table.

    Returns:
        Their URIs, as the log has them: relative to the table, or absolute; none if none is found.
    """
    removed: set[str] = set()
    for number in range(version, max(version - _COMMITS, -1), -1):
        lines = actions(number)
        if lines is None:
            break
        file_actions: list[dict[str, Any]] = [
            json.loads(line) for line in lines if line.startswith((b'{"add"', b'{"remove"'))
        ]
        added = [action["add"]["path"] for action in file_actions if "add" in action]
        present_paths = [path for path in added if path not in removed]
        if present_paths:
            return present_paths
        removed |= {action["remove"]["path"] for action in file_actions if "remove" in action}
    return []
