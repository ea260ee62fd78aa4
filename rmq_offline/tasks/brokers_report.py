"""Report by broker of a job over several stores, whose tasks run in common batches."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rmq_formats.read.stores import BrokerStore, all_stores_failed_error
from rmq_offline.tasks.job_steps import JobSteps, run_together
from rmq_offline.tasks.runner import Runner


class StoreReport(Protocol):
    """Report on one store."""

    @property
    def messages(self) -> int:
        """Records of the log."""

    @property
    def bytes(self) -> int:
        """Bytes of these records."""

    @property
    def is_clean(self) -> bool:
        """True if the report has no faults."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON report."""


Report = TypeVar("Report", bound=StoreReport)


@dataclass(frozen=True, slots=True)
class BrokersReport(Generic[Report]):
    """Reports on stores that were named by paths, patterns and TOML files: of each the report, or the job's error."""

    job: str
    store_names: Sequence[str]
    stores: tuple[BrokerStore, ...]
    outcomes: list[Report | Exception]
    seconds: float

    @property
    def reports(self) -> list[tuple[BrokerStore, Report]]:
        """The stores whose job has ended without an error, with their reports."""
        both = zip(self.stores, self.outcomes, strict=True)
        return [(store, outcome) for store, outcome in both if not isinstance(outcome, Exception)]

    @property
    def failed(self) -> list[tuple[BrokerStore, str]]:
        """The stores whose job has failed, with the errors' texts."""
        both = zip(self.stores, self.outcomes, strict=True)
        return [(store, str(outcome)) for store, outcome in both if isinstance(outcome, Exception)]

    @property
    def is_clean(self) -> bool:
        """True if no store has failed, and each report is clean."""
        return not self.failed and all(report.is_clean for _, report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the job's JSON report."""
        done = [report for _, report in self.reports]
        size = sum(report.bytes for report in done)
        brokers = []
        for store, outcome in zip(self.stores, self.outcomes, strict=True):
            names = {"cluster": store.cluster, "broker_name": store.broker}
            if isinstance(outcome, Exception):
                brokers.append({**names, "store": store.path, "error": str(outcome)})
            else:
                brokers.append({**names, **outcome.to_dict()})
        return {
            "job": self.job,
            "store": ", ".join(self.store_names),
            "messages": sum(report.messages for report in done),
            "bytes": size,
            "seconds": self.seconds,
            "bytes_per_second": round(size / self.seconds) if self.seconds else 0,
            "failed": len(self.failed),
            "brokers": brokers,
        }


def run_on_stores(
    job: str, names: Sequence[str], stores: tuple[BrokerStore, ...], steps: Sequence[JobSteps[Report]], runner: Runner
) -> BrokersReport[Report]:
    """Run a job on several stores. Raises StoreError if the job failed for all of them."""
    begin = time.perf_counter()
    outcomes = run_together(steps, runner)
    report = BrokersReport(job, names, stores, outcomes, round(time.perf_counter() - begin, 3))
    if not report.reports:
        _, reason = report.failed[0]
        raise all_stores_failed_error(job, stores, reason)
    return report
