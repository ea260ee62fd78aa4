"""Functions over arrays of store bytes, compiled by numba; tests compare each with plain Python.

numba compiles a kernel when its module is first imported and caches the machine code beside it, by the
mtime of that one file. Kernels inline each other, so code cached before a change of any of them is
dropped here, for all of them; other packages with kernels have ``drop_stale_code`` do the same for theirs.
"""

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).parent
_BELOW = (
    "layout.py",
    "record_layout.py",
    "damage.py",
    "variants/dledger.py",
)  # constants that kernels are compiled with


def drop_stale_code(directory: Path, sources: Iterable[Path]) -> None:
    """Drop the machine code that numba keeps of a package, if it was compiled from other sources.

    Call it before the package's kernels are imported.

    Args:
        directory: of the package.
        sources: what its kernels are made of; all of this package is taken to be a part of it.
    """
    own = [*sorted(_HERE.rglob("*.py")), *(_HERE.parent / "codecs" / name for name in _BELOW)]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in [*own, *sources])).hexdigest()
    cache = directory / "__pycache__"
    stamp = cache / "kernels.sha256"
    # A read-only installation cannot have changed since its code was compiled.
    with contextlib.suppress(OSError):
        if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
            return
        for kept in cache.glob("*.nb[ic]"):
            kept.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest, encoding="ascii")


for _package in (_HERE, _HERE / "columns", _HERE / "encode"):
    drop_stale_code(_package, ())
