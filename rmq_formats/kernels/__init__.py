"""Functions over arrays of store bytes, compiled by numba; tests compare each with plain Python.

numba compiles a kernel when its module is first imported and caches the machine code beside it, by the
mtime of that one file, or where ``machine_code`` has found that it can be written. Kernels inline each other, so code
cached before a change of any of them is dropped here, for all of them; other packages with kernels have
``drop_stale_code`` do the same for theirs.
"""

from collections.abc import Iterable
from pathlib import Path

from rmq_formats.kernels import machine_code

_HERE = Path(__file__).parent
# Modules with constants that kernels are compiled with.
_BELOW = ("layout.py", "record_layout.py", "record_frame.py", "dledger.py", "hosts.py")


def drop_stale_code(directory: Path, sources: Iterable[Path]) -> None:
    """Delete numba's cached machine code of a package if it was compiled from other sources.

    Call it before the package's kernels are imported; all sources of this package count as ``sources``, too.
    """
    kernel_sources = [*sorted(_HERE.rglob("*.py")), *(_HERE.parent / "codecs" / name for name in _BELOW)]
    machine_code.drop_stale_code(directory, [*kernel_sources, *sources])


machine_code.choose_directory(_HERE)
for _package in (_HERE, _HERE / "columns", _HERE / "encode"):
    drop_stale_code(_package, ())
