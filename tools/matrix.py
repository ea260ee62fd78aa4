"""Runs the tests of sources and jobs on each Spark: ``make test-matrix``, or ``make test-matrix SPARK="4.0 4.3"``.

Each Spark has an environment of its own below ``.matrix``, one a version of Python (``PYTHON=python3.13``), with the
versions of ``constraints.txt`` for all else. Each file of tests is a run of its own, whose outcome is a line of
``.matrix/results.jsonl``: a matrix that was ended goes on with the next file, at the same commit, and runs again what
failed. At the end stands a table of what was run so far. Tests of what a Spark is too old for count as skipped where
that is what they are told (``tools/matrix_plugin.py``).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MATRIX: Final = ROOT / ".matrix"
RESULTS: Final = MATRIX / "results.jsonl"
_COUNTS: Final = re.compile(r"(\d+ [a-z]+(, )?)+ in [\d.]+s|no tests ran in ")
TESTS: Final = ("tests/spark", "tests/jobs", "tests/lakehouse")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of Spark, and of the Delta that fits."""

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
    # Else the first job does so, in each of its processes: on a busy machine that takes longer than a test may.
    subprocess.run([str(python), "-m", "tools.compile_kernels"], cwd=ROOT, check=True)
    done.touch()
    return python


def _libraries() -> list[str]:
    """Return the requirements of the project and its tests, without Spark and Delta."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(text for extra in extras.values() for text in extra),
        "importlib_metadata",
    ]
    return [text for text in requirements if not text.startswith(("pyspark", "delta-spark", "rmq-lake"))]


def python_version(interpreter: str) -> str:
    """Return the version of an interpreter, as ``3.11.7``."""
    command = [interpreter, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one test file in one environment; errors of fixtures and of imports count as failed.

    Attributes:
        code: pytest's exit code; 5 is that there were none to run.
        ended: pytest's last line.
    """

    commit: str
    spark: str
    delta: str
    python: str
    file: str
    code: int
    passed: int
    failed: int
    skipped: int
    ended: str

    @property
    def is_good(self) -> bool:
        """Return whether no test failed."""
        return self.code in (0, 5)


def outcomes(commit: str) -> dict[tuple[str, str, str], Outcome]:
    """Read the last outcomes of a commit by Spark, Python and file."""
    by_environment = {}
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            outcome = Outcome(**json.loads(line))
            if outcome.commit == commit:
                by_environment[outcome.spark, outcome.python, outcome.file] = outcome
    return by_environment


def run(python: Path, version: Version, running: str, commit: str, file: str) -> Outcome:
    """Run a file of tests in an environment, and note what has come of it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
    # Warnings are no errors here: Spark 4.0 leaves sockets of its own open.
    command = [python, "-m", "pytest", "-q", "-W", "default", "-p", "tools.matrix_plugin", "-m", "not peer", file]
    log = MATRIX / f"spark{version.pyspark}-python{running}" / f"{file.replace('/', '.')}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as text:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=text, stderr=subprocess.STDOUT, check=False)
    ended = last_line(log.read_text(errors="replace"))
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", ended)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode not in (0, 5):
        failed = max(failed, 1)  # a process that died has counted nothing
    outcome = Outcome(
        commit,
        version.pyspark,
        version.delta,
        running,
        file,
        done.returncode,
        counts.get("passed", 0),
        failed,
        counts.get("skipped", 0),
        ended,
    )
    with RESULTS.open("a") as results:
        results.write(json.dumps(asdict(outcome)) + "\n")
    return outcome


def last_line(text: str) -> str:
    """Return pytest's line with the counts, which a warning of open sockets may follow; else the last line."""
    lines = [line.strip("= ") for line in text.strip().splitlines()] or ["said nothing"]
    return next((line for line in reversed(lines) if _COUNTS.match(line)), lines[-1])


def table(results: Iterable[Outcome], files: int) -> str:
    """Draw a table of outcomes, a row an environment."""
    rows: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in results:
        rows.setdefault((outcome.spark, outcome.delta, outcome.python), []).append(outcome)
    lines = ["| Spark | Delta | Python | files | passed | failed | skipped | failed in |", "| --- " * 8 + "|"]
    for names, row_outcomes in sorted(rows.items()):
        sums = [sum(getattr(outcome, kind) for outcome in row_outcomes) for kind in ("passed", "failed", "skipped")]
        bad = ", ".join(outcome.file for outcome in row_outcomes if not outcome.is_good)
        lines.append(f"| {' | '.join([*names, f'{len(row_outcomes)} of {files}', *map(str, sums), bad])} |")
    return "\n".join(lines) + "\n"


def test_files(chosen: Iterable[str]) -> list[str]:
    """List the files of tests below some folders."""
    files = [
        path
        for name in chosen
        for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("test_*.py"))
    ]
    return sorted(str(path.relative_to(ROOT)) for path in files)


def main() -> int:
    """Run the chosen versions one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(VERSIONS)}; default: all")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="instead of the tests of sources and jobs")
    parser.add_argument("--python", default=sys.executable, help="interpreter; default: that of the project")
    parser.add_argument("--anew", action="store_true", help="run what has passed at this commit, too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.versions if name not in VERSIONS]
    if unknown:
        parser.error(f"no such version: {', '.join(unknown)}; there are {', '.join(VERSIONS)}")
    files = test_files(arguments.tests)
    MATRIX.mkdir(exist_ok=True)
    git = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    running = python_version(arguments.python)
    good = True
    for name in arguments.versions or VERSIONS:
        version = VERSIONS[name]
        python = prepare(MATRIX / f"{name}-python{'.'.join(running.split('.')[:2])}", version, arguments.python)
        for file in files:
            outcome = outcomes(commit).get((version.pyspark, running, file))
            if outcome is None or not outcome.is_good or arguments.anew:
                outcome = run(python, version, running, commit, file)
                sys.stdout.write(f"Spark {version.pyspark}, Python {running}: {file}: {outcome.ended}\n")
                sys.stdout.flush()
            good &= outcome.is_good
    sys.stdout.write(table(outcomes(commit).values(), len(files)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
