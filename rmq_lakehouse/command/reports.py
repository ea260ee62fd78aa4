"""Report of an export, with its exit code."""

from typing import Any

from rmq_lakehouse.command.options import ExportOptions
from rmq_lakehouse.exports import ExportCounts, MessageSource
from rmq_offline.job_arguments import EXIT_CLEAN, EXIT_FINDINGS


def report_of(
    options: ExportOptions, source: MessageSource[Any, Any], undecoded: int, seconds: float
) -> tuple[dict[str, Any], int]:
    """Report on an export with ``undecoded`` messages of all runs: its counts, and missing data, which are findings."""
    parts = source.parts
    total = sum((part.total for part in parts), ExportCounts())
    missing = {name: sum(part.lost[name] for part in parts) for name in parts[0].lost}
    exports = [export.name for export in parts[0].exports]
    position: dict[str, Any] = {}
    by_broker: dict[str, Any] = {}
    if options.has_one_log:
        position = parts[0].position
    else:
        brokers = [part.to_dict() for part in parts]
        by_broker = {"failed": sum("error" in broker for broker in brokers), "brokers": brokers}
    report = {
        "job": f"export_{options.format}",
        **_source_fields(options),
        "table": options.table,
        "mode": options.mode,
        **position,
        **total.to_dict(),
        **missing,
        "pending_undecoded": undecoded,
        "files": total.files,
        "exports": {name: sum(part.counts[name].messages for part in parts) for name in exports},
        "batches": source.rounds,
        **by_broker,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(total.bytes / seconds),
    }
    findings = total.damaged or undecoded or any(missing.values()) or by_broker.get("failed")
    return report, EXIT_FINDINGS if findings else EXIT_CLEAN


def _source_fields(options: ExportOptions) -> dict[str, str]:
    if options.namesrv is not None:
        return {"namesrv": options.namesrv}
    stores = {"store": ", ".join(options.stores)}
    return stores if options.tier is None else stores | {"tier": options.tier}
