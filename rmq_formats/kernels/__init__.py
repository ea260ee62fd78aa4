"""numba kernels: arrays in, arrays out, native speed; each has a plain-Python oracle in the tests.

numba compiles a kernel when its module is first imported and keeps the machine code beside it, by the
age of that one file. Kernels inline each other, so code kept from before a change of any of them is
dropped here, for all of them; other packages with kernels have ``drop_stale_code`` do the same for theirs.
"""

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).parent


def drop_stale_code(directory: Path, sources: Iterable[Path]) -> None:
    """Drop the machine code that numba keeps of a package, if it was compiled from other sources.

    Call it before the package's kernels are imported.

    Args:
        directory: of the package.
        sources: what its kernels are made of; all of this package is taken to be a part of it.
    """
    own = [*sorted(_HERE.glob("*.py")), _HERE.parent / "layout.py", _HERE.parent / "damage.py"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in [*own, *sources])).hexdigest()
    cache = directory / "__pycache__"
    stamp = cache / "kernels.sha256"
    # An installation that cannot be written to was not changed since it was made.
    with contextlib.suppress(OSError):
        if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
            return
        for kept in cache.glob("*.nb[ic]"):
            kept.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest, encoding="ascii")


drop_stale_code(_HERE, ())
