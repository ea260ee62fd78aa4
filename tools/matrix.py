"""Runs the tests of sources and jobs on each Spark: ``make test-matrix``, or ``make test-matrix SPARK="4.0 4.3"``.

Each Spark has an environment of its own below ``.matrix``, one a version of Python (``PYTHON=python3.13``), with the
versions of ``constraints.txt`` for all else. The end of each run is a line of ``.matrix/results.txt``. Tests of what a
Spark is too old for count as skipped where that is what they are told (``tools/matrix_plugin.py``).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MATRIX: Final = ROOT / ".matrix"
TESTS: Final = ("tests/spark", "tests/jobs", "tests/lakehouse")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of Spark, with what fits it.

    Attributes:
        pyspark: of the package.
        delta: of delta-spark, the package and the jars.
    """

    pyspark: str
    delta: str = "4.4.0"


VERSIONS: Final = {
    "4.0": Version("4.0.5"),
    "4.1": Version("4.1.4"),
    "4.2": Version("4.2.0"),
    "4.3": Version("4.3.0"),  # no Delta was built for it yet: that of 4.2
}


def prepare(directory: Path, version: Version, interpreter: str) -> Path:
    """Make the environment of a version, if it is not there; returns its Python."""
    python = directory / "bin" / "python"
    done = directory / f".spark-{version.pyspark}-delta-{version.delta}"
    if done.exists():
        return python
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", str(directory)], check=True)
    constraints = directory / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in pinned if not re.match(r"(pyspark|delta_spark|py4j)==", line)))
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "-c", str(constraints), f"pyspark=={version.pyspark}", *_libraries()], check=True)
    # Delta's package asks for a Spark that was there when it was made.
    subprocess.run([*pip, "--no-deps", f"delta-spark=={version.delta}", "-e", str(ROOT)], check=True)
    subprocess.run(["make", "--no-print-directory", "delta-jars", f"BIN={directory / 'bin'}"], cwd=ROOT, check=True)
    done.touch()
    return python


def _libraries() -> list[str]:
    """The libraries that the project and its tests ask for, but Spark and Delta."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(text for extra in extras.values() for text in extra), "importlib_metadata"]
    return [text for text in wanted if not text.startswith(("pyspark", "delta-spark", "rmq-lake"))]


def python_version(interpreter: str) -> str:
    """Return the version of an interpreter, as ``3.11.7``."""
    command = [interpreter, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(name: str, version: Version, interpreter: str, tests: list[str]) -> bool:
    """Run the tests with a version; returns whether they passed."""
    running = python_version(interpreter)
    directory = MATRIX / f"{name}-python{'.'.join(running.split('.')[:2])}"
    python = prepare(directory, version, interpreter)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
    # Warnings are no errors here: Spark 4.0 leaves sockets of its own open.
    command = [python, "-m", "pytest", "-q", "-W", "default", "-p", "tools.matrix_plugin", "-m", "not peer", *tests]
    log = MATRIX / f"{directory.name}.log"
    with log.open("w") as file:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    ended = log.read_text(errors="replace").strip().splitlines()[-1].strip("= ")
    line = f"Spark {version.pyspark}, Delta {version.delta}, Python {running}: {ended}"
    with (MATRIX / "results.txt").open("a") as results:
        results.write(f"{datetime.now(UTC):%Y-%m-%d} {line}\n")
    sys.stdout.write(f"{line} ({log.relative_to(ROOT)})\n")
    sys.stdout.flush()
    return done.returncode == 0


def main() -> int:
    """Run the chosen versions one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(VERSIONS)}; default: all")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="instead of the tests of sources and jobs")
    parser.add_argument("--python", default=sys.executable, help="interpreter; default: that of the project")
    given = parser.parse_args()
    unknown = [name for name in given.versions if name not in VERSIONS]
    if unknown:
        parser.error(f"no such version: {', '.join(unknown)}; there are {', '.join(VERSIONS)}")
    MATRIX.mkdir(exist_ok=True)
    passed = [run(name, VERSIONS[name], given.python, given.tests) for name in given.versions or VERSIONS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
