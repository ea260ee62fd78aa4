"""Machine code of kernels is kept from one process to the next, and dropped when a source of it has changed."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_formats import kernels
from rmq_formats.kernels import drop_stale_code, machine_code


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a source, and code that was compiled from it."""
    (tmp_path / "kernel.py").write_text("version = 1\n")
    (tmp_path / "__pycache__").mkdir()
    drop_stale_code(tmp_path, [tmp_path / "kernel.py"])
    for name in ("kernel.walk-1.nbi", "kernel.walk-1.1.nbc", "kernel.cpython-311.pyc"):
        (tmp_path / "__pycache__" / name).touch()
    return tmp_path


def kept(package: Path) -> set[str]:
    return {path.name for path in (package / "__pycache__").iterdir()} - {"kernels.sha256"}


def test_code_of_the_same_sources_is_kept(package: Path) -> None:
    drop_stale_code(package, [package / "kernel.py"])
    assert len(kept(package)) == 3


def test_code_of_another_source_is_dropped_and_nothing_else(package: Path) -> None:
    (package / "kernel.py").write_text("version = 2\n")
    drop_stale_code(package, [package / "kernel.py"])
    assert kept(package) == {"kernel.cpython-311.pyc"}


def test_code_that_inlines_another_package_s_is_dropped_with_a_change_of_that(
    package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # A copy of the package of kernels in which one changes, loaded in processes of their own.
    source = Path(kernels.__file__).parent
    changed = tmp_path_factory.mktemp("changed") / "rmq_formats"
    shutil.copytree(
        source.parent,
        changed,
        ignore=shutil.ignore_patterns("__pycache__", "spark", "tasks", "rebuild", "verify", "repair", "write"),
    )
    program = (
        "import sys; from pathlib import Path; from rmq_formats.kernels import drop_stale_code;"
        "package = Path(sys.argv[1]); drop_stale_code(package, [package / 'kernel.py'])"
    )
    command = [sys.executable, "-c", program, str(package)]
    subprocess.run(command, cwd=changed.parent, check=True, timeout=60)
    assert len(kept(package)) == 3
    (changed / "kernels" / "bytes.py").write_text((source / "bytes.py").read_text() + "\n# changed\n")
    subprocess.run(command, cwd=changed.parent, check=True, timeout=60)
    assert kept(package) == {"kernel.cpython-311.pyc"}


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package that cannot be written, for a user who cannot write the home directory either."""
    for name in (machine_code.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "x")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Path("/dev/null/package")


def test_who_can_write_nowhere_has_a_cache_in_the_temporary_directory(
    read_only: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine_code.choose_directory(read_only)
    cache = tmp_path / f"rmq-kernels-{os.geteuid()}"
    assert os.environ.pop(machine_code.VARIABLE) == str(cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(cache) in record.getMessage()
    (cache / "kernels").mkdir()
    machine_code.choose_directory(read_only)  # which has been filled meanwhile
    assert os.environ[machine_code.VARIABLE] == str(cache)
    assert len(caplog.records) == 1


def test_a_cache_that_others_can_write_is_not_used(read_only: Path, tmp_path: Path) -> None:
    shared = tmp_path / f"rmq-kernels-{os.geteuid()}"
    shared.mkdir()
    shared.chmod(0o777)  # machine code that is loaded from there would be run
    machine_code.choose_directory(read_only)
    chosen = Path(os.environ[machine_code.VARIABLE])
    assert chosen.parent == tmp_path
    assert chosen != shared
    shared.rmdir()
    shared.symlink_to(chosen)
    del os.environ[machine_code.VARIABLE]
    machine_code.choose_directory(read_only)
    assert os.environ[machine_code.VARIABLE] != str(shared)


def test_a_cache_in_the_home_goes_before_and_a_writable_package_needs_none(
    read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code.choose_directory(tmp_path)
    assert machine_code.VARIABLE not in os.environ
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    machine_code.choose_directory(read_only)
    assert os.environ[machine_code.VARIABLE] == str(tmp_path / "home" / ".cache" / "rmq-kernels")


def test_stale_code_is_dropped_from_the_directory_that_numba_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caching = pytest.importorskip("numba.core.caching")
    package = tmp_path / "package"
    package.mkdir()
    (package / "kernel.py").write_text("version = 1\n")
    monkeypatch.setenv(machine_code.VARIABLE, str(tmp_path / "cache"))
    subpath = caching.UserProvidedCacheLocator.get_suitable_cache_subpath(str(package / "kernel.py"))
    drop_stale_code(package, [package / "kernel.py"])
    code = tmp_path / "cache" / subpath / "kernel.walk-1.nbi"
    code.touch()
    drop_stale_code(package, [package / "kernel.py"])
    assert code.exists()
    (package / "kernel.py").write_text("version = 2\n")
    drop_stale_code(package, [package / "kernel.py"])
    assert not code.exists()
