"""The wheel: what it holds, and that every entry of an installation runs without the source tree."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from tools.wheel import PLACES

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOUND_BY_SPARK = [f"pyspark_{name}" for name in SETTINGS["project"]["entry-points"]["rmq.spark_sources"]]
PACKAGES = [name.rstrip("*") for name in SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"]]
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").iterdir() if path.suffix in {".ipynb", ".py"})

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheel")]  # one worker builds it

# Loads each job as ``python -m`` does, and asks for its arguments.
LOAD_JOBS = """
import sys, importlib
for name in sys.argv[1:]:
    module = importlib.import_module(f"rmq_jobs.{name}")
    print(name, module.parser().format_usage().split()[1], module.__file__.startswith(sys.prefix))
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves directories behind."""
    source, wheels = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, *PLACES, "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", wheels, "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = wheels.glob("*.whl")
    return found


@dataclass(frozen=True)
class Installation:
    """An environment of its own that has the wheel, and the tests' libraries."""

    directory: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, far from the source tree."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        return subprocess.run(
            [str(self.directory / "bin" / command[0]), *map(str, command[1:])],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def install(wheel: Path, directory: Path, *, without: tuple[str, ...] = ()) -> Installation:
    """Install the wheel alone; libraries are links to the tests' own, but for some."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    libraries = directory / "libraries"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        own = path.name.startswith(("rmq_lake", "__editable__", *without))
        if not own and path.suffix != ".pth":
            (libraries / path.name).symlink_to(path)
    python = directory / "bin" / "python"
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (directory / site / "libraries.pth").write_text(f"{libraries}\n")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return Installation(directory)


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment with the wheel."""
    return install(wheel, tmp_path_factory.mktemp("environment") / "full")


def test_it_has_the_packages_the_jobs_the_settings_and_the_notebooks(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name for name in names if "/" not in name} == {f"{name}.py" for name in FOUND_BY_SPARK}
    assert {name.partition("/")[0] for name in names if "/" in name} == {*PACKAGES, "rmq_jobs"}
    suffixes = {".py", ".conf", ".ipynb", ".properties", ".proto", ".java", ".typed"}
    packaged = [path for name in PACKAGES for path in (ROOT / name).rglob("*")]
    expected = {str(path.relative_to(ROOT)) for path in packaged if path.suffix in suffixes or path.name == "py.typed"}
    for folder, place in PLACES.items():
        expected |= {f"{place}/{path.name}" for path in (ROOT / folder).iterdir() if path.suffix in suffixes}
    assert names - {f"{name}.py" for name in FOUND_BY_SPARK} == expected


def test_an_installation_has_the_command_and_every_job(installation: Installation) -> None:
    done = installation.run("rmq", "--version")
    assert done.stdout == f"rmq {version('rmq-lake')}\n", done.stderr
    done = installation.run("python", "-c", LOAD_JOBS, *JOBS)
    assert done.stdout.splitlines() == [f"{name} {name}.py True" for name in JOBS], done.stderr


def test_a_job_gets_its_arguments_as_a_command_and_as_a_module(installation: Installation) -> None:
    module = ("python", "-m", "rmq_jobs.import_delta")
    for program, name in ((("rmq", "import"), "rmq import"), (module, "import_delta.py")):
        done = installation.run(*program, "--table", "x", "--nosuch")
        assert done.returncode == 2
        assert done.stderr == f"{name}: the following arguments are required: --store (see --help)\n"


def test_notebooks_are_copied_and_none_that_was_changed_is_replaced(installation: Installation) -> None:
    target = installation.directory / "somewhere" / "notebooks"
    done = installation.run("rmq", "notebooks", target)
    assert (done.returncode, sorted(path.name for path in target.iterdir())) == (0, NOTEBOOKS), done.stderr
    assert done.stdout.splitlines() == [str(target / name) for name in NOTEBOOKS]
    assert installation.run("rmq", "notebooks", target).returncode == 0
    (target / "shop.py").write_text("mine")
    done = installation.run("rmq", "notebooks", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"rmq: {target}: has shop.py already, with other content; --overwrite replaces them\n"
    assert (target / "shop.py").read_text() == "mine"
    assert installation.run("rmq", "notebooks", target, "--overwrite").returncode == 0
    assert (target / "shop.py").read_bytes() == (ROOT / "notebooks" / "shop.py").read_bytes()


def test_without_spark_a_job_names_what_to_install(wheel: Path, tmp_path: Path) -> None:
    bare = install(wheel, tmp_path / "bare", without=("pyspark", "py4j", "delta"))
    done = bare.run("rmq", "replay", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rmq: rmq replay runs on Spark, which is not installed: pip install 'rmq-lake[spark]'\n"
    assert bare.run("rmq", "export", "--help").returncode == 0
    assert bare.run("rmq", "--help").returncode == 0


@pytest.mark.spark
def test_a_replay_by_the_installed_command_runs_its_tasks_by_the_installed_module(
    installation: Installation, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = ("--store", golden("mixed") / "store", "--topics", "Orders", "--to-store", tmp_path / "again")
    done = installation.run("rmq", "replay", *arguments, "--report", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    lines = (golden("mixed") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    assert report["messages"] == sum(json.loads(line)["topic"] == "Orders" for line in lines) > 0
    assert installation.run("rmq", "verify", tmp_path / "again").returncode == 0
