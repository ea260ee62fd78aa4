"""Report of a rebuild, as JSON and as a notebook card."""

from dataclasses import asdict, dataclass
from typing import Any

from rmq_formats.html_text import bytes_text, card, card_findings, counted, tone
from rmq_offline.rebuild.publication import Outcome
from rmq_offline.verify.findings import Finding


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Counts, findings and timings of a rebuild.

    Attributes:
        bytes: size of the sound records together.
        index_tags: whether TAGS are indexed, and why.
        phases: seconds of each phase.
        findings: the first ``MAX_REPORTED`` of each task; ``finding_counts`` has all.
    """

    store: str
    out: str
    messages: int
    bytes: int
    units: int
    index_entries: int
    index_tags: str
    queues: int
    files: int
    seconds: float
    phases: dict[str, float]
    findings: tuple[Finding, ...]
    finding_counts: dict[str, int]
    outcome: Outcome

    @property
    def is_clean(self) -> bool:
        """True if there are no findings, and all harm to consumers is accepted."""
        return not self.finding_counts and self.outcome.is_clean

    def _repr_html_(self) -> str:
        rows = [
            ("read", f"{self.messages:,} messages, {bytes_text(self.bytes)}"),
            ("queues", f"{self.queues:,}, {self.units:,} units"),
            ("Index", f"{self.index_entries:,} keys"),
            ("published", self.out),
            ("in", f"{self.seconds:,.1f} s"),
        ]
        faults = sum(self.finding_counts.values())
        verdict = f"{counted(self.files, 'file')} made" + (f", {counted(faults, 'finding')}" if faults else "")
        kinds = {finding.kind.code: finding.kind for finding in self.findings}
        more = card_findings(
            [
                (str(kind.severity), str(kind.severity), code, self.finding_counts[code], kind.remedy)
                for code, kind in kinds.items()
            ]
        )
        return card(f"Rebuild of {self.store}", rows, verdict=verdict, tone=tone(0, faults), more=more)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the job's JSON report."""
        fields = {name: value for name, value in asdict(self).items() if name != "outcome"} | self.outcome.to_dict()
        fields["findings"] = [finding.to_dict() for finding in self.findings]
        rate = round(self.bytes / self.seconds) if self.seconds else 0
        return {"job": "rebuild", **fields, "bytes_per_second": rate}
