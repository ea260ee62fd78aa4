"""Reports of ``jobs/export_delta.py``, with their exit codes."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rmq_formats.lakehouse.cluster.run import ClusterRun
from rmq_formats.lakehouse.command.several import StoresRun
from rmq_formats.lakehouse.raw import ExportCounts
from rmq_formats.lakehouse.run import ExportRun
from rmq_formats.spark.job import EXIT_CLEAN, EXIT_FINDINGS

Report = tuple[dict[str, Any], int]


def report_of_cluster(arguments: argparse.Namespace, run: ClusterRun, undecoded: int, seconds: float) -> Report:
    """Report on the export of a running cluster, or of a store with its tier; ``undecoded`` counts all runs."""
    parts = [part.counts for part in run.parts]
    source = (
        {"namesrv": arguments.namesrv}
        if arguments.tier is None
        else {"store": arguments.store[0], "tier": arguments.tier}
    )
    source_fields = source | _destination(arguments)
    exports = {
        export.name: sum(part.get(export.name, ExportCounts()).messages for part in parts)
        for export in run.parts[0].exports
    }
    brokers = [part.to_dict() for part in run.parts]
    missing = _sums(brokers, "missing_messages")
    return _report(
        arguments, source_fields, run.total, missing, exports, run.rounds, undecoded, seconds, _of_brokers(brokers)
    )


def report_of_stores(arguments: argparse.Namespace, run: StoresRun, undecoded: int, seconds: float) -> Report:
    """Report on the export of several stores, by broker."""
    progress = [part.run.progress for part in run.parts]
    source_fields = {"store": ", ".join(arguments.store)} | _destination(arguments)
    total = sum((export.total for export in progress), ExportCounts())
    exports = {
        export.name: sum(run_progress.counts[export.name].messages for run_progress in progress)
        for export in run.parts[0].exports
    }
    brokers = [part.to_dict() for part in run.parts]
    missing = _sums(brokers, "missing_bytes", "torn_bytes", "leftover_bytes")
    return _report(
        arguments, source_fields, total, missing, exports, run.rounds, undecoded, seconds, _of_brokers(brokers)
    )


def report_of_store(arguments: argparse.Namespace, run: ExportRun, torn: int, undecoded: int, seconds: float) -> Report:
    """Report on the export of one store with ``torn`` torn bytes."""
    progress = run.progress
    source_fields = {"store": arguments.store[0]} | _destination(arguments) | progress.offsets
    exports = {name: counts.messages for name, counts in progress.counts.items()}
    missing = {"missing_bytes": progress.missing_bytes, "torn_bytes": torn, "leftover_bytes": progress.leftover_bytes}
    return _report(arguments, source_fields, progress.total, missing, exports, progress.batches, undecoded, seconds, {})


def _destination(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"table": arguments.table, "mode": arguments.mode}


def _sums(brokers: Sequence[Mapping[str, Any]], *names: str) -> dict[str, int]:
    return {name: sum(broker[name] for broker in brokers) for name in names}


def _of_brokers(brokers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"failed": sum("error" in broker for broker in brokers), "brokers": brokers}


def _report(
    arguments: argparse.Namespace,
    source_fields: Mapping[str, Any],
    total: ExportCounts,
    missing: Mapping[str, int],
    exports: Mapping[str, int],
    batches: int,
    undecoded: int,
    seconds: float,
    by_broker: Mapping[str, Any],
) -> Report:
    """Build the report: the export, its counts, and the counts of missing data, which are findings."""
    report = {
        "job": f"export_{arguments.format}",
        **source_fields,
        **total.to_dict(),
        **missing,
        "pending_undecoded": undecoded,
        "files": total.files,
        "exports": exports,
        "batches": batches,
        **by_broker,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    findings = total.damaged or undecoded or any(missing.values()) or by_broker.get("failed")
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN
