"""Source and report of a conversion."""

from dataclasses import asdict, dataclass
from typing import Any

from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.findings import Finding


@dataclass(frozen=True, slots=True)
class Source:
    """The store that is converted.

    Attributes:
        sizes: of its files, which those of the new store have too.
    """

    files: StoreFiles
    sizes: StoreSizes


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of one way of conversion.

    Attributes:
        messages: records that the new store has.
        bytes: of these records.
        changes: what the new store does not have, or has otherwise, in sentences for people.
        findings: faults of the old store that the new one does not have, and for which it lacks something.
    """

    messages: int
    bytes: int
    changes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """Report of a conversion.

    Attributes:
        seconds: from the first look to the publication.
    """

    store: str
    out: str
    to: str
    seconds: float
    done: Converted

    def to_dict(self) -> dict[str, Any]:
        """Convert to the command's JSON report."""
        fields = asdict(self)
        done = fields.pop("done") | {"findings": [finding.to_dict() for finding in self.done.findings]}
        return {**fields, **done}
