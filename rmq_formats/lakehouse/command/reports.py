"""Reports of ``jobs/export_delta.py``, with their exit codes."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rmq_formats.lakehouse.cluster.run import ClusterRun
from rmq_formats.lakehouse.command.several import StoresRun
from rmq_formats.lakehouse.raw import Landed
from rmq_formats.lakehouse.run import ExportRun
from rmq_formats.spark.job import EXIT_CLEAN, EXIT_FINDINGS

Report = tuple[dict[str, Any], int]


def report_of_cluster(given: argparse.Namespace, run: ClusterRun, undecoded: int, seconds: float) -> Report:
    """Report on the export of a running cluster, or of a store with its tier; ``undecoded`` are those of all runs."""
    parts = [part.landed for part in run.parts]
    source = {"namesrv": given.namesrv} if given.tier is None else {"store": given.store[0], "tier": given.tier}
    named = source | _how(given)
    exports = {one.name: sum(part.get(one.name, Landed()).messages for part in parts) for one in run.parts[0].exports}
    brokers = [part.to_dict() for part in run.parts]
    gone = _sums(brokers, "missing_messages")
    return _report(given, named, run.total, gone, exports, run.rounds, undecoded, seconds, _of_brokers(brokers))


def report_of_stores(given: argparse.Namespace, run: StoresRun, undecoded: int, seconds: float) -> Report:
    """Report on the export of several stores, by broker."""
    progress = [part.run.progress for part in run.parts]
    named = {"store": ", ".join(given.store)} | _how(given)
    total = sum((one.total for one in progress), Landed())
    exports = {one.name: sum(own.landed[one.name].messages for own in progress) for one in run.parts[0].exports}
    brokers = [part.to_dict() for part in run.parts]
    gone = _sums(brokers, "missing_bytes", "torn_bytes", "leftover_bytes")
    return _report(given, named, total, gone, exports, run.rounds, undecoded, seconds, _of_brokers(brokers))


def report_of_store(given: argparse.Namespace, run: ExportRun, torn: int, undecoded: int, seconds: float) -> Report:
    """Report on the export of one store, whose log has so many torn bytes."""
    progress = run.progress
    named = {"store": given.store[0]} | _how(given) | progress.offsets
    exports = {name: landed.messages for name, landed in progress.landed.items()}
    gone = {"missing_bytes": progress.missing_bytes, "torn_bytes": torn, "leftover_bytes": progress.leftover_bytes}
    return _report(given, named, progress.total, gone, exports, progress.batches, undecoded, seconds, {})


def _how(given: argparse.Namespace) -> dict[str, Any]:
    return {"table": given.table, "mode": given.mode}


def _sums(brokers: Sequence[Mapping[str, Any]], *names: str) -> dict[str, int]:
    return {name: sum(broker[name] for broker in brokers) for name in names}


def _of_brokers(brokers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"failed": sum("error" in broker for broker in brokers), "brokers": brokers}


def _report(
    given: argparse.Namespace,
    named: Mapping[str, Any],
    total: Landed,
    gone: Mapping[str, int],
    exports: Mapping[str, int],
    batches: int,
    undecoded: int,
    seconds: float,
    by_broker: Mapping[str, Any],
) -> Report:
    """Build the report: what was exported, its counts, and those of what was not there, which are findings."""
    report = {
        "job": f"export_{given.format}",
        **named,
        **total.to_dict(),
        **gone,
        "pending_undecoded": undecoded,
        "files": total.files,
        "exports": exports,
        "batches": batches,
        **by_broker,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    findings = total.damaged or undecoded or any(gone.values()) or by_broker.get("failed")
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN
