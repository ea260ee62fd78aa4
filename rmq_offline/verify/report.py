"""Report of a verification, and its findings as an Arrow table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from rmq_formats.errors import OptionError, without_secrets
from rmq_formats.html_text import bytes_text, card, card_findings, counted, tone
from rmq_offline.verify.findings import Finding, Kind, Severity
from rmq_offline.verify.phases.scan import SegmentState

MAX_SHOWN: Final = 8  # kinds of findings on a notebook's card
MAX_LISTED: Final = 1000  # findings in the JSON report; the table has all that were kept

FINDINGS_SCHEMA: Final = pa.schema(
    [
        ("code", pa.string()), ("severity", pa.string()), ("detail", pa.string()), ("path", pa.string()),
        ("physical_offset", pa.int64()), ("size", pa.int64()), ("topic", pa.string()), ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()), ("expected", pa.string()), ("actual", pa.string()), ("count", pa.int64()),
        ("remedy", pa.string()),
    ]
)  # fmt: skip
_WEIGHT: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Counts, findings and figures of a verification.

    Attributes:
        messages: number of sound records; ``bytes`` is their size.
        units: messages that queues should name.
        index_paths: the IndexFiles, oldest first.
        index_entries: keys that the Index should have.
        phases: seconds of each phase.
        findings: the first of each kind, errors first; ``counts`` has the numbers of all.
        faulty_queues: topic and queue id of all queues with a fault, by kind.
        layouts: layouts beside the classic one, such as a DLedger CommitLog.
    """

    store: str
    messages: int
    bytes: int
    queues: int
    units: int
    index_paths: tuple[str, ...]
    index_entries: int
    seconds: float
    phases: dict[str, float]
    segments: tuple[SegmentState, ...]
    findings: tuple[Finding, ...]
    counts: dict[Kind, int]
    faulty_queues: dict[Kind, set[tuple[str, int]]] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()

    def without_secrets(self) -> "VerifyReport":
        """Return the report without secrets in URIs."""
        return replace(
            self,
            store=without_secrets(self.store),
            index_paths=tuple(without_secrets(path) for path in self.index_paths),
            segments=tuple(replace(segment, path=without_secrets(segment.path)) for segment in self.segments),
            findings=tuple(finding.without_secrets() for finding in self.findings),
        )

    def total(self, severity: Severity) -> int:
        """Return the number of faults of one severity."""
        return sum(count for kind, count in self.counts.items() if kind.severity is severity)

    @property
    def is_clean(self) -> bool:
        """True if all findings are information."""
        return not self.total(Severity.ERROR) and not self.total(Severity.WARNING)

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        faults = list_faults(self.total(Severity.ERROR), self.total(Severity.WARNING))
        return " and ".join(faults) or "The store is sound"

    @property
    def bytes_per_second(self) -> int:
        """Throughput: bytes of records by the seconds of the whole run."""
        return round(self.bytes / self.seconds) if self.seconds else 0

    def kinds(self) -> list[tuple[Kind, int]]:
        """Return the kinds of findings with their counts, the gravest and most frequent first."""
        return sorted(self.counts.items(), key=lambda item: (_WEIGHT[item[0].severity], -item[1], item[0].code))

    def _repr_html_(self) -> str:
        """Render a card for notebooks: the verdict, what was read, the gravest kinds of faults."""
        rows = [
            ("log", f"{self.messages:,} messages, {bytes_text(self.bytes)}, {counted(len(self.segments), 'file')}"),
            ("queues", f"{self.queues:,}, {self.units:,} units"),
            ("Index", f"{counted(len(self.index_paths), 'file')}, {self.index_entries:,} keys"),
            ("read in", f"{self.seconds:,.1f} s"),
        ]
        shown = [
            (str(kind.severity), str(kind.severity), kind.code, count, kind.remedy)
            for kind, count in self.kinds()
            if kind.severity is not Severity.INFO
        ][:MAX_SHOWN]
        return card(
            f"Verification of {self.store}",
            rows,
            verdict=self.headline,
            tone=tone(self.total(Severity.ERROR), self.total(Severity.WARNING)),
            more=card_findings(shown),
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to the job's JSON report."""
        return {
            "job": "verify",
            "store": self.store,
            "layouts": list(self.layouts),
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "bytes_per_second": self.bytes_per_second,
            "clean": self.is_clean,
            "queues": self.queues,
            "units": self.units,
            "index_files": len(self.index_paths),
            "index_entries": self.index_entries,
            "phases": self.phases,
            "severities": {str(severity): self.total(severity) for severity in Severity},
            "finding_counts": {kind.code: count for kind, count in self.kinds()},
            "findings_total": sum(self.counts.values()),
            "findings_listed": min(len(self.findings), MAX_LISTED),
            "findings": [finding.to_dict() for finding in self.findings[:MAX_LISTED]],
            "segments": [asdict(segment) for segment in self.segments],
        }


def list_faults(errors: int, warnings: int) -> list[str]:
    """Format the numbers of errors and warnings, except for 0: ``1 error``, ``2 warnings``."""
    return [counted(count, noun) for count, noun in ((errors, "error"), (warnings, "warning")) if count]


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings: the gravest first, then by where they are."""

    def place(item: Finding) -> tuple[int, str, int, str, int]:
        family = item.kind.code.partition(".")[0]
        return _WEIGHT[item.kind.severity], family, item.physical_offset or 0, item.path or "", item.queue_offset or 0

    return tuple(sorted(findings, key=place))


def findings_table(findings: Sequence[Finding]) -> pa.Table:
    """Convert findings to an Arrow table, a row each."""
    rows = [finding.to_dict() for finding in findings]
    for row in rows:
        for name in ("detail", "path", "topic", "expected", "actual"):
            if row[name] is not None:  # a name from damaged bytes may not be valid text
                row[name] = row[name].encode("utf-8", "replace").decode()
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


def write_findings(table: pa.Table, path: str, file_format: str) -> None:
    """Write a table of findings as one file, local or at a URI.

    Args:
        file_format: ``json`` (JSON lines) or ``parquet``.

    Raises:
        OptionError: another format, or a path that cannot be written.
    """
    if file_format not in {"json", "parquet"}:
        raise OptionError(f"--findings-format {file_format}: give json or parquet (delta: jobs/verify.py only)")
    try:
        file_system, inner = pafs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
        with file_system.open_output_stream(inner) as sink:
            if file_format == "parquet":
                pq.write_table(table, sink)
            else:
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()]
                sink.write("".join(lines).encode("utf-8"))
    except (OSError, pa.ArrowInvalid) as error:
        raise OptionError(f"--findings {path}: cannot be written ({error})") from error
