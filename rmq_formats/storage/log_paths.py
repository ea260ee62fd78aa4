"""Directories of CommitLogs that an operator's broker.conf has elsewhere than in their stores."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# By a store's root, the directories of its CommitLog where the operator's broker.conf has it elsewhere. In the
# environment, so that the processes that Spark starts for its sources find the log, too.
LOG_PATHS_VARIABLE: Final = "RMQ_LOG_PATHS"


def use_log_directories(root: str, directories: Sequence[str]) -> None:
    """Let this process, and those that it starts, find a local store's CommitLog in other directories."""
    directories_by_root = json.loads(os.environ.get(LOG_PATHS_VARIABLE, "{}"))
    os.environ[LOG_PATHS_VARIABLE] = json.dumps(directories_by_root | {_absolute(root): list(directories)})


def configured_log_directories(root: str) -> list[str]:
    """Return the directories that ``use_log_directories`` has set for a store; empty for ``<root>/commitlog``."""
    text = os.environ.get(LOG_PATHS_VARIABLE)
    return [] if text is None else list(json.loads(text).get(_absolute(root), ()))


def _absolute(root: str) -> str:
    return root if "://" in root else str(Path(root).absolute())
