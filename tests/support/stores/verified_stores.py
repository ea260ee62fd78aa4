"""Helpers of the verification's tests: small sound stores, damage, and what a verification says of them."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.codecs.record_layout import store_timestamp_at
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner, Runner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport
from tests.support.stores.store_files import write_commitlog

FILE_BYTES = 4096
REBUILT = RebuildOptions(True, True, StoreSizes(1 << 30, 400, 0, 50, 30, (1000, 5000)))
SIZES = VerifyOptions(FILE_BYTES, 400, 0, 50, 30, (1000, 5000))
HOST = Host.parse("127.0.0.1:10911")
FIRST_MS = 1_700_000_000_000


def message(number: int, **changes: object) -> MessageToStore:
    """A message of one of four queues, with tags, a unique key and a key."""
    fields: dict[str, object] = {
        "topic": "Orders" if number % 2 else "Clicks", "queue_id": number // 2 % 2, "flag": 0, "sys_flag": 0,
        "born_timestamp_ms": FIRST_MS - 5, "born_host": HOST, "store_host": HOST, "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body": f"body {number} ".encode() * (1 + number % 5),
        "properties_bytes": encode_properties(
            {"TAGS": f"T{number % 3}", "UNIQ_KEY": f"U{number:04}", "KEYS": f"k{number}"}
        ),
    }  # fmt: skip
    return MessageToStore(**{**fields, **changes})  # type: ignore[arg-type]


def sound_store(
    root: Path, messages: Iterable[MessageToStore] | int = 60, options: RebuildOptions = REBUILT
) -> list[int]:
    """Write a store whose files agree; the physical offsets of its records."""
    if isinstance(messages, int):
        messages = [message(number) for number in range(messages)]
    placed = write_commitlog(root, messages, FILE_BYTES, FIRST_MS)
    rebuild(root, options)
    return placed


def store_whose_clock_went_back(root: Path) -> None:
    """A sound store of 200 messages: the first 100 are an hour later than the others."""
    for physical_offset in sound_store(root, 200)[:100]:
        path, position = log_path(root, physical_offset)
        patch(path, position + store_timestamp_at(0), (FIRST_MS + 3_600_000).to_bytes(8, "big"))
    shutil.rmtree(root / "index")
    rebuild(root)


def rebuild(root: Path, options: RebuildOptions = REBUILT) -> None:
    """Make the derived files anew."""
    rebuild_store(str(root), None, options, ProcessRunner(1))


def verify(store: Path, options: VerifyOptions = SIZES) -> VerifyReport:
    """Verify in this process."""
    return verify_with(store, options, ProcessRunner(1))


def verify_with(store: Path, options: VerifyOptions, runner: Runner) -> VerifyReport:
    """Verify on a runner."""
    return verify_store(str(store), options, runner)


def codes(report: VerifyReport, *, informing: bool = False) -> dict[str, int]:
    """Faults by code, without mere information unless asked for."""
    return {kind.code: count for kind, count in report.kinds() if informing or kind.severity is not Severity.INFO}


def only(report: VerifyReport, code: str) -> Finding:
    """The one finding of a code."""
    (found,) = (finding for finding in report.findings if finding.kind.code == code)
    return found


def patch(path: Path, offset: int, data: bytes) -> None:
    """Overwrite some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip_at(path: Path, offset: int, mask: int = 0x5A) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def log_path(store: Path, physical_offset: int) -> tuple[Path, int]:
    """The segment that holds a physical offset, and where in it."""
    start = physical_offset // FILE_BYTES * FILE_BYTES
    return store / "commitlog" / f"{start:020d}", physical_offset - start


def copied(store: Path, target: Path) -> Path:
    """A store that may be damaged."""
    shutil.copytree(store, target)
    return target
