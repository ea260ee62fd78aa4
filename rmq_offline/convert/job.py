"""Conversion of a store: checks, work beside the target, publication. ``TARGETS`` has the ways of conversion."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.errors import OptionError, StoreError, os_errors_as_store_errors
from rmq_formats.read.log_end import readable_segments
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import directory_lock, refuse_open_log, store_lock
from rmq_offline.convert.conversions import ConversionResult, Source, convert_to_classic, convert_to_rocksdb
from rmq_offline.tasks.publish import sync_directory, sync_file_system
from rmq_offline.tasks.runner import Runner
from rmq_offline.verify.delay_levels import infer_delay_levels
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.phases.plan import VerifyOptions, refuse_inside_store, resolve_sizes

Conversion = Callable[[Source, Path, Runner], ConversionResult]

TARGETS: Final[dict[str, Conversion]] = {"classic": convert_to_classic, "rocksdb": convert_to_rocksdb}
"""By ``--to``: a function that is given the old store, and an empty directory in which it makes the new one."""


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """Report of a conversion."""

    store: str
    out: str
    to: str
    seconds: float
    done: ConversionResult

    def to_dict(self) -> dict[str, Any]:
        """Convert to the command's JSON report."""
        fields = asdict(self)
        done = fields.pop("done") | {"findings": [finding.to_dict() for finding in self.done.findings]}
        return {**fields, **done}


def convert_store(store: str, to: str, out: str, options: VerifyOptions, runner: Runner) -> ConvertReport:
    """Convert a store into another layout.

    The new store is written to ``OUT.rmq-convert``, flushed, and then renamed. A killed conversion leaves no ``OUT``,
    and the next one starts from the beginning.

    Args:
        store: root of the old store, a directory or a URI; only read.
        to: the new layout, of ``TARGETS``.
        out: root of the new store: a new or an empty directory.

    Raises:
        OptionError: an unknown layout, or a target that cannot be one.
        StoreNotFoundError: there is no store.
        StoreLayoutError: a store that cannot be converted so.
        StoreLockedError: a running broker has the store.
        StoreError: a file that cannot be read or written.
    """
    begin = time.perf_counter()
    convert = TARGETS.get(to)
    if convert is None:
        raise OptionError(f"--to {to}: give {' or '.join(TARGETS)}")
    options.check()
    files = open_store(store)
    files.require_readable()
    target = _check_target(files.root, out)
    segments = readable_segments(files)
    sizes = resolve_sizes(files, segments, options, FindingList())
    if options.delay_levels_ms is None:
        sizes = replace(sizes, delay_levels_ms=infer_delay_levels(files, segments, sizes.delay_levels_ms))
    source = Source(open_store(files.root), sizes)  # read under the lock
    is_locked = files.storage.is_local and Path(paths.lock_file(files.root)).exists()
    if files.storage.is_local and not is_locked:  # the lock's file may have been deleted under a running broker
        refuse_open_log(files.root)
    with (
        os_errors_as_store_errors(out),
        store_lock(files.root) if is_locked else nullcontext(),
        _new_store(target) as work,
    ):
        done = convert(source, work, runner)
    return ConvertReport(store, out, to, round(time.perf_counter() - begin, 3), done)


def _check_target(root: str, out: str) -> Path:
    """Refuse a target that is neither new nor empty, or that is inside the store. Raises OptionError."""
    if "://" in out:
        raise OptionError(f"--out {out}: give a directory of this machine")
    refuse_inside_store(root, "--out", out)
    target = Path(out).absolute()
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise OptionError(f"--out {out}: exists already; give a new directory")
    return target


@contextmanager
def _new_store(target: Path) -> Iterator[Path]:
    """Make the store in a directory beside the target, and rename it at the end."""
    beside = target.with_name(f"{target.name}.rmq-convert")
    try:
        with directory_lock(str(beside)):
            work = beside / "store"
            if work.exists():
                shutil.rmtree(work)
            work.mkdir()
            try:
                yield work
                Path(paths.lock_file(str(work))).unlink(missing_ok=True)
                sync_file_system(work)
                try:
                    work.rename(target)
                except OSError as error:
                    raise StoreError(f"{target}: cannot be made ({error.strerror})") from error
                sync_directory(target.parent)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    finally:
        with suppress(OSError):  # another conversion works there
            beside.rmdir()
