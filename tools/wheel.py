"""Puts what stands beside the packages into an installation: ``pyspark_*`` modules, jobs, settings and notebooks.

Spark imports each top-level module named ``pyspark_*``, in paths only, and registers its ``DefaultSource``. The build
writes one for each entry point of ``rmq.spark_sources``: into the wheel, or, for an editable installation, beside the
packages.

``jobs``, ``conf`` and ``notebooks`` are names that another project may have as well, in the one directory into which
all projects of an environment are installed: ``jobs`` becomes ``rmq_jobs``, settings and notebooks are in it. A map of
package directories in ``pyproject.toml`` would do the same, but then an editable installation is no path any more.
"""

import shutil
import tomllib
from pathlib import Path
from typing import Final

from setuptools.command.build_py import build_py

PLACES: Final = {"jobs": "rmq_jobs", "conf": "rmq_jobs/conf", "notebooks": "rmq_jobs/notebooks"}
_PATTERNS: Final = ("*.py", "*.conf", "*.ipynb")
_SOURCES: Final = "rmq.spark_sources"
_MODULE: Final = '''"""Data source ``{name}``: Spark registers ``DefaultSource`` of modules named ``pyspark_*``."""

from {module} import {source} as DefaultSource

__all__ = ["DefaultSource"]
'''


class BuildPy(build_py):
    """Builds the packages, and what belongs to them."""

    def run(self) -> None:
        """Write the modules and copy the files; an editable installation finds the files where they are."""
        super().run()
        write_spark_modules(Path() if self.editable_mode else Path(self.build_lib))
        if self.editable_mode:
            return
        for folder, place in PLACES.items():
            target = Path(self.build_lib, place)
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(path for pattern in _PATTERNS for path in Path(folder).glob(pattern)):
                shutil.copy(path, target)


def spark_sources() -> dict[str, str]:
    """Return the entry points of the data sources, by the names of the sources."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    sources: dict[str, str] = project["entry-points"][_SOURCES]
    return sources


def write_spark_modules(directory: Path) -> None:
    """Write the module of each data source."""
    for name, entry_point in spark_sources().items():
        module, _, source = entry_point.partition(":")
        text = _MODULE.format(name=name, module=module, source=source)
        (directory / f"pyspark_{name}.py").write_text(text, "utf-8")
