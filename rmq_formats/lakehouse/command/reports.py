"""Reports of ``jobs/export_delta.py``, with their exit codes."""

import argparse
from typing import Any

from rmq_formats.lakehouse.cluster.run import ClusterRun
from rmq_formats.lakehouse.command.several import StoresRun
from rmq_formats.lakehouse.raw import Landed
from rmq_formats.lakehouse.run import ExportRun
from rmq_formats.spark.job import EXIT_CLEAN, EXIT_FINDINGS


def report_of_cluster(given: argparse.Namespace, run: ClusterRun, seconds: float) -> tuple[dict[str, Any], int]:
    """Report on the export of a running cluster."""
    total = run.total
    brokers = [part.to_dict() for part in run.parts]
    report = {
        "job": f"export_{given.format}",
        "namesrv": given.namesrv,
        "table": given.table,
        "mode": given.mode,
        "messages": total.messages,
        "bytes": total.bytes,
        "damaged": total.damaged,
        "undecoded": total.undecoded,
        "missing_messages": sum(broker["missing_messages"] for broker in brokers),
        "files": total.files,
        "exports": {
            export.name: sum(part.landed.get(export.name, Landed()).messages for part in run.parts)
            for export in run.parts[0].exports
        },
        "batches": run.rounds,
        "failed": sum("error" in broker for broker in brokers),
        "brokers": brokers,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    lost = total.undecoded if given.dlq_table is None else 0
    findings = lost or any(report[name] for name in ("damaged", "missing_messages", "failed"))
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN


def report_of_stores(given: argparse.Namespace, run: StoresRun, seconds: float) -> tuple[dict[str, Any], int]:
    """Report on the export of several stores, by broker."""
    parts = run.parts
    total = sum((part.run.progress.total for part in parts), Landed())
    brokers = [part.to_dict() for part in parts]
    report = {
        "job": f"export_{given.format}",
        "store": ", ".join(given.store),
        "table": given.table,
        "mode": given.mode,
        "messages": total.messages,
        "bytes": total.bytes,
        "damaged": total.damaged,
        "undecoded": total.undecoded,
        "missing_bytes": sum(broker["missing_bytes"] for broker in brokers),
        "torn_bytes": sum(broker["torn_bytes"] for broker in brokers),
        "files": total.files,
        "exports": {
            export.name: sum(part.run.progress.landed[export.name].messages for part in parts)
            for export in parts[0].exports
        },
        "batches": run.rounds,
        "failed": sum("error" in broker for broker in brokers),
        "brokers": brokers,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    lost = total.undecoded if given.dlq_table is None else 0
    findings = lost or any(report[name] for name in ("damaged", "torn_bytes", "missing_bytes", "failed"))
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN


def report_of_store(given: argparse.Namespace, run: ExportRun, torn: int, seconds: float) -> tuple[dict[str, Any], int]:
    """Report on the export of one store, whose log has so many torn bytes."""
    progress, total = run.progress, run.progress.total
    report = {
        "job": f"export_{given.format}",
        "store": given.store[0],
        "table": given.table,
        "mode": given.mode,
        "starting_physical_offset": progress.start,
        "ending_physical_offset": progress.end,
        "messages": total.messages,
        "bytes": total.bytes,
        "damaged": total.damaged,
        "undecoded": total.undecoded,
        "missing_bytes": progress.missing_bytes,
        "torn_bytes": torn,
        "files": total.files,
        "exports": {name: landed.messages for name, landed in progress.landed.items()},
        "batches": progress.batches,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    lost = total.undecoded if given.dlq_table is None else 0
    findings = total.damaged or lost or torn or progress.missing_bytes
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN
