"""Checks the controller mode's own files: the epochs against the log that they divide, and the broker's identity."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from rmq_formats.codecs.controller import BrokerIdentity, Epoch, decode_epochs, decode_identity
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.ranges import walk_start
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.findings import Finding, Kind
from rmq_offline.verify.log_facts import LogFacts

EPOCHS: Final = "epochFileCheckpoint"
IDENTITY: Final = "brokerIdentity"
MAX_TEXT_BYTES: Final = 1 << 20  # limit: some 40,000 epochs, each of which is looked up in the log

_Decoded = TypeVar("_Decoded", tuple[Epoch, ...], BrokerIdentity)


def check_broker_identity(store: StoreFiles) -> Iterator[Finding]:
    """Check ``brokerIdentity``, where there is one."""
    path = f"{store.root}/{IDENTITY}"
    if not store.storage.exists(path):  # storePathBrokerIdentity may have it elsewhere
        return
    identity = _decode_file(store.storage, path, decode_identity)
    if isinstance(identity, str):
        yield Finding(layout_finding_kinds.BROKER_IDENTITY, identity, path)


def check_epochs(store: StoreFiles, segments: Sequence[Segment], facts: LogFacts) -> Iterator[Finding]:
    """Check ``epochFileCheckpoint``, where there is one, and where its epochs begin in the log's readable files.

    Yields:
        Findings; EPOCH_BEYOND does not count if a broker wrote to the store meanwhile.
    """
    path, backup_path = f"{store.root}/{EPOCHS}", f"{store.root}/{EPOCHS}.bak"
    if not store.storage.exists(path):
        return
    epochs = _decode_file(store.storage, path, decode_epochs)
    if isinstance(epochs, str):
        has_backup = store.storage.exists(backup_path)
        backup = _decode_file(store.storage, backup_path, decode_epochs) if has_backup else "is not there"
        what = f"its .bak: {backup}" if isinstance(backup, str) else "a broker takes its .bak"
        yield Finding(layout_finding_kinds.EPOCH_FILE, f"{epochs}; {what}", path)
        if isinstance(backup, str):
            return
        path, epochs = backup_path, backup
    yield from _order_findings(epochs, path)
    starts = {segment.start_offset for segment in segments} | {facts.end}
    starts |= {epoch.start_offset for epoch in epochs if epoch.start_offset < facts.start}  # deleted since
    for epoch in epochs:
        if epoch.start_offset > facts.end:
            detail, kind = "begins beyond the end of the log", layout_finding_kinds.EPOCH_BEYOND
            yield _finding(epoch, path, detail, f"at most {facts.end}", kind)
        elif not (epoch.start_offset in starts or _is_boundary(store.storage, segments, facts, epoch.start_offset)):
            yield _finding(epoch, path, "begins within a record", "where a record begins")


def _order_findings(epochs: Sequence[Epoch], path: str) -> Iterator[Finding]:
    for epoch in epochs[:1]:
        if epoch.number < 0 or epoch.start_offset < 0:
            yield _finding(epoch, path, "is negative", "0 or more")
    for before, after in pairwise(epochs):
        if after.number <= before.number:
            yield _finding(after, path, "does not rise", f"epoch {before.number + 1} or more")
        elif after.start_offset < before.start_offset:
            yield _finding(after, path, "begins before the one before it", f"offset {before.start_offset} or more")


def _finding(epoch: Epoch, path: str, detail: str, expected: str, kind: Kind = layout_finding_kinds.EPOCH) -> Finding:
    actual = f"epoch {epoch.number}, offset {epoch.start_offset}"
    return Finding(kind, f"epoch {epoch.number} {detail}", path, epoch.start_offset, expected=expected, actual=actual)


def _is_boundary(storage: Storage, segments: Sequence[Segment], facts: LogFacts, physical_offset: int) -> bool:
    """Return whether a record ends at an offset, or damage hides the end."""
    around = np.array([physical_offset - 1, physical_offset], dtype=np.int64)
    is_hidden = bool(facts.is_lost(around).any())
    return is_hidden or walk_start(storage, segments, physical_offset) == physical_offset


def _decode_file(storage: Storage, path: str, decode: Callable[[str], _Decoded]) -> _Decoded | str:
    """Decode a small text file, or return the reason of the failure."""
    try:
        with storage.open(path) as file:
            if file.size_bytes > MAX_TEXT_BYTES:
                return f"has {file.size_bytes} bytes, more than {MAX_TEXT_BYTES}"
            return decode(read_range(file, 0, file.size_bytes).decode())
    except UnicodeDecodeError:
        return "is no text"
    except FormatError as error:
        return str(error)
    except (StoreError, OSError) as error:
        return f"cannot be read: {error}"
