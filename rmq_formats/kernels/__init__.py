"""numba kernels: arrays in, arrays out, native speed; each has a plain-Python oracle in the tests.

numba compiles a kernel when its module is first imported and keeps the machine code beside it, by the
age of that one file. Kernels inline each other, so code kept from before a change of any of them is
dropped here, for all of them.
"""

import contextlib
import hashlib
from pathlib import Path


def _drop_stale_code() -> None:
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "layout.py", here.parent / "damage.py"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    cache = here / "__pycache__"
    stamp = cache / "kernels.sha256"
    # An installation that cannot be written to was not changed since it was made.
    with contextlib.suppress(OSError):
        if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
            return
        for kept in cache.glob("*.nb[ic]"):
            kept.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest, encoding="ascii")


_drop_stale_code()
