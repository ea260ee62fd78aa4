"""Files that are installed with the packages: jobs, settings and notebooks.

In a source tree they are folders beside the packages, in an installation they are in ``rmq_jobs`` (``tools/wheel.py``).
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_BESIDE: Final = Path(__file__).parents[2]
_INSTALLED: Final = _BESIDE / "rmq_jobs"


def folder(name: str) -> Path:
    """Return the folder ``conf`` or ``notebooks``."""
    return (_INSTALLED if _INSTALLED.is_dir() else _BESIDE) / name


def job_module(name: str) -> str:
    """Return the name of a job's module."""
    return f"{'rmq_jobs' if _INSTALLED.is_dir() else 'jobs'}.{name}"


def has_spark() -> bool:
    """Return whether pyspark is installed, without loading it."""
    return find_spec("pyspark") is not None
