"""Findings of store checks: a stable code with severity and remedy, and the place of the fault."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rmq_formats.errors import without_secrets


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"  # data is lost, or reads give wrong results
    WARNING = "warning"  # a rebuild restores all
    INFO = "info"  # for information; no fault, does not make the exit code 1


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    Attributes:
        code: stable: programs may compare it.
        is_repaired: whether a repair of log and queues removes such findings.
    """

    code: str
    severity: Severity
    remedy: str
    is_repaired: bool = True


def error(code: str, remedy: str) -> Kind:
    """Define a kind of error that a repair removes."""
    return Kind(code, Severity.ERROR, remedy)


def unrepaired_error(code: str, remedy: str) -> Kind:
    """Define a kind of error that no repair removes."""
    return Kind(code, Severity.ERROR, remedy, is_repaired=False)


def warning(code: str, remedy: str) -> Kind:
    """Define a kind of warning that a repair removes."""
    return Kind(code, Severity.WARNING, remedy)


def unrepaired_warning(code: str, remedy: str) -> Kind:
    """Define a kind of warning that no repair removes."""
    return Kind(code, Severity.WARNING, remedy, is_repaired=False)


def info(code: str, remedy: str) -> Kind:
    """Define a kind of information."""
    return Kind(code, Severity.INFO, remedy)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault found in a store, and its place.

    Attributes:
        size: number of bytes concerned.
        count: number of faults, if a run of them is one finding, such as units in a row.
    """

    kind: Kind
    detail: str
    path: str | None = None
    physical_offset: int | None = None
    size: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    expected: str | None = None
    actual: str | None = None
    count: int = 1

    def without_secrets(self) -> "Finding":
        """Return the finding without secrets in a path that is a URI."""
        return self if self.path is None else replace(self, path=without_secrets(self.path))

    def to_dict(self) -> dict[str, Any]:
        """Convert to a flat dictionary, for JSON and tables; empty fields are None."""
        fields = asdict(self)
        kind = fields.pop("kind")
        return {"code": kind["code"], "severity": str(kind["severity"]), **fields, "remedy": kind["remedy"]}


class FindingList:
    """List of findings: all are counted, the first of each kind are stored.

    A fault may occur a million times; the stored findings must neither fill memory nor hide other faults. Checks take
    two lists: those in ``race_findings`` do not count if a broker wrote to the store meanwhile.

    Attributes:
        kept: the stored findings, in the order of ``add``.
        counts: number of findings by kind, stored or not.
        queues: topic and queue id of all queues with a warning or an error, by kind.
    """

    def __init__(self, kept_per_code: int = 1000) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[Kind] = Counter()
        self.queues: dict[Kind, set[tuple[str, int]]] = {}
        self._kept_per_code = kept_per_code
        self._kept: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Count a finding, and store the first ones of each kind."""
        self.counts[finding.kind] += finding.count
        if finding.kind.severity is not Severity.INFO and finding.topic is not None and finding.queue_id is not None:
            self.queues.setdefault(finding.kind, set()).add((finding.topic, finding.queue_id))
        if self.has_room(finding.kind):
            self._kept[finding.kind.code] += 1
            self.kept.append(finding)

    def report(self, kind: Kind, detail: str, path: str | None = None, **fields: Any) -> None:
        """Add a finding of these fields."""
        self.add(Finding(kind, detail, path, **fields))

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add findings one by one."""
        for finding in findings:
            self.add(finding)

    def add_uncounted(self, kind: Kind, count: int) -> None:
        """Count faults without storing a finding for each."""
        if count:
            self.counts[kind] += count

    def has_room(self, kind: Kind) -> bool:
        """Return whether one more finding of a kind would be stored: otherwise its details are not needed."""
        return self._kept[kind.code] < self._kept_per_code

    def merge(self, other: "FindingList") -> None:
        """Add the findings and counts of another list."""
        for finding in other.kept:
            if self.has_room(finding.kind):
                self._kept[finding.kind.code] += 1
                self.kept.append(finding)
        self.counts.update(other.counts)
        for kind, queues in other.queues.items():
            self.queues.setdefault(kind, set()).update(queues)
