"""Puts what stands beside the packages into the wheel: ``jobs`` becomes ``rmq_jobs``, settings and notebooks are in it.

``jobs``, ``conf`` and ``notebooks`` are names that another project may have as well, in the one directory into which
all projects of an environment are installed. A map of package directories in ``pyproject.toml`` would do the same, but
then an editable installation is no path any more, and Spark finds the ``pyspark_*`` modules in paths only.
"""

import shutil
from pathlib import Path
from typing import Final

from setuptools.command.build_py import build_py

PLACES: Final = {"jobs": "rmq_jobs", "conf": "rmq_jobs/conf", "notebooks": "rmq_jobs/notebooks"}
_PATTERNS: Final = ("*.py", "*.conf", "*.ipynb")


class BuildPy(build_py):
    """Builds the packages, and what belongs to them."""

    def run(self) -> None:
        """Copy the files; an editable installation finds them where they are."""
        super().run()
        if self.editable_mode:
            return
        for folder, place in PLACES.items():
            target = Path(self.build_lib, place)
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(path for pattern in _PATTERNS for path in Path(folder).glob(pattern)):
                shutil.copy(path, target)
