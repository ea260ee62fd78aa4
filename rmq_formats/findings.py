"""What a job found wrong with a store: a code, where it is, and what to do about it."""

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rmq_formats.damage import Damage


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"  # data is lost or would be answered wrongly
    WARNING = "warning"  # nothing is lost that a rebuild does not bring back
    INFO = "info"  # worth knowing; no fault, and no reason for an exit code of 1


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding. ``code`` is stable: programs may compare it."""

    code: str
    severity: Severity
    remedy: str


DAMAGED_RECORD = Kind(
    "commitlog.damaged",
    Severity.ERROR,
    "the stretch cannot be read; restore it from a replica, or quarantine it with rmq repair",
)
MISSING_SEGMENT = Kind(
    "commitlog.segment.missing", Severity.ERROR, "a file between two others is gone; restore it from a replica"
)
WRONG_FILE_SIZE = Kind(
    "commitlog.segment.size",
    Severity.ERROR,
    "a broker does not start with a file of another size than mappedFileSizeCommitLog; restore or quarantine it",
)
FOREIGN_FILE = Kind(
    "commitlog.foreign",
    Severity.ERROR,
    "a broker does not start with a file here that is no segment; move it out of the store",
)
UNSAFE_TOPIC = Kind(
    "commitlog.topic",
    Severity.ERROR,
    "the record's topic is no directory name, so it gets no unit in a queue; restore it from a replica",
)
REPEATED_QUEUE_OFFSET = Kind(
    "commitlog.queue_offset.repeated",
    Severity.WARNING,
    "two records claim one place in the queue; the first in the log has it",
)
DISPLACED_QUEUE_OFFSET = Kind(
    "commitlog.queue_offset.displaced",
    Severity.ERROR,
    "the record's queue offset is far from its queue's others, as of a damaged header; a rebuild leaves its unit out",
)
QUEUE_GAP = Kind(
    "commitlog.queue_offset.gap",
    Severity.WARNING,
    "no record claims these places in the queue; a rebuild fills them with pre-blank units, which consumers skip",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        kind: which fault; carries severity and remedy.
        detail: the fault in words.
        path: the file, if it is one file's.
        physical_offset: where in the log.
        size: bytes concerned.
        topic: of the queue concerned.
        queue_id: of the queue concerned.
        queue_offset: of the unit concerned.
        expected: what should be there.
        actual: what is there.
        count: faults of this kind in one stretch that are told as one, such as units in a row.
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

    def to_dict(self) -> dict[str, Any]:
        """Flat, for JSON and tables; fields that say nothing are None."""
        fields = asdict(self)
        kind = fields.pop("kind")
        return {"code": kind["code"], "severity": str(kind["severity"]), **fields, "remedy": kind["remedy"]}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Finding":
        """The reverse of ``to_dict``."""
        rest = {name: value for name, value in fields.items() if name not in {"code", "severity", "remedy"}}
        return cls(Kind(fields["code"], Severity(fields["severity"]), fields["remedy"]), **rest)


def damage_finding(damage: Damage, path: str | None = None) -> Finding:
    """The finding for a damaged stretch of the CommitLog."""
    return Finding(DAMAGED_RECORD, damage.code.text, path, damage.physical_offset, damage.size)


class FindingList:
    """Collects findings: all are counted, the first of each kind are kept.

    One fault may come a million times; what is kept of it must neither fill memory nor hide the others.

    Attributes:
        kept: in the order in which they came.
        counts: faults by kind, those included that were not kept.
    """

    def __init__(self, kept_per_code: int = 1000) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[Kind] = Counter()
        self._kept_per_code = kept_per_code
        self._kept: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if it is one of the first of its kind."""
        self.counts[finding.kind] += finding.count
        if self.has_room(finding.kind):
            self._kept[finding.kind.code] += 1
            self.kept.append(finding)

    def add_uncounted(self, kind: Kind, count: int) -> None:
        """Count faults that nobody will look at one by one."""
        if count:
            self.counts[kind] += count

    def has_room(self, kind: Kind) -> bool:
        """Whether one more of that kind would be kept: if not, its details need not be found out."""
        return self._kept[kind.code] < self._kept_per_code

    def merge(self, other: "FindingList") -> None:
        """Take over what another list holds."""
        for finding in other.kept:
            if self.has_room(finding.kind):
                self._kept[finding.kind.code] += 1
                self.kept.append(finding)
        self.counts.update(other.counts)

    def by_severity(self) -> dict[Severity, int]:
        """Faults by severity, all three of them."""
        totals = dict.fromkeys(Severity, 0)
        for kind, count in self.counts.items():
            totals[kind.severity] += count
        return totals
