"""Location of numba's cached machine code of kernels, and the check that the code fits the sources.

numba caches it beside the source. A user who cannot write there has a directory in the user's cache or, without a home
as in a container, a service with a read-only root or an executor of Spark, in the temporary directory.
"""

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

log = logging.getLogger("rmq.kernels")

VARIABLE: Final = "NUMBA_CACHE_DIR"
_NAME: Final = "rmq-kernels"


def choose_directory(package: Path) -> None:
    """Set numba's cache to a directory of this user alone if the package's is read-only, and log that once.

    Machine code is loaded and run, so a directory that other users could write is no choice.
    """
    if os.environ.get(VARIABLE) or _is_writable(package / "__pycache__"):
        return
    chosen = _choose()
    if chosen is None:
        return
    os.environ[VARIABLE] = str(chosen)
    config = sys.modules.get("numba.core.config")
    if config is not None:  # it has read the variable already
        config.CACHE_DIR = str(chosen)  # type: ignore[attr-defined] # numba has no types
    if not any(chosen.iterdir()):
        log.warning(
            "kernels are compiled once, into %(directory)s: %(package)s is read-only; %(variable)s chooses another",
            {"directory": chosen, "package": package, "variable": VARIABLE},
        )


def _choose() -> Path | None:
    """Make a directory that this user alone can write; None where none can be made."""
    home_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")  # noqa: PTH111
    try:
        for directory in (home_cache / _NAME, Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}"):
            if _is_own(directory):
                return directory
        temporary = Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))
    except OSError:
        return None
    atexit.register(_remove, temporary, os.getpid())
    return temporary


def drop_stale_code(directory: Path, sources: Iterable[Path]) -> None:
    """Delete numba's cached machine code of a package if it was compiled from other sources than these."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    cache = _cache_of(directory)
    stamp = cache / "kernels.sha256"
    # A read-only installation cannot have changed since its code was compiled.
    with contextlib.suppress(OSError):
        if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
            return
        for kept in cache.glob("*.nb[ic]"):
            kept.unlink(missing_ok=True)
        cache.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest, encoding="ascii")


def _cache_of(directory: Path) -> Path:
    """Return numba's cache directory of a package. Source: ``get_suitable_cache_subpath`` of ``numba.core.caching``."""
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        return directory / "__pycache__"
    return Path(chosen) / f"{directory.name}_{hashlib.sha1(str(directory).encode(), usedforsecurity=False).hexdigest()}"


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _is_own(directory: Path) -> bool:
    """Return whether a directory exists, or can be made, that this user alone can write."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    is_safe = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return is_safe and _is_writable(directory)


def _remove(directory: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # and no child's, which was forked
        shutil.rmtree(directory, ignore_errors=True)
