"""Find what is wrong with a store: ``spark-submit jobs/verify.py --store DIR``. Nothing is written into it."""

import argparse
import tempfile
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_formats.consumequeue import delay_levels_ms
from rmq_formats.errors import StoreNotFoundError
from rmq_formats.findings import Finding
from rmq_formats.offline.verify_plan import VerifyOptions
from rmq_formats.offline.verify_report import findings_table
from rmq_formats.offline.verify_store import refuse_inside_store, verify_store
from rmq_formats.report.verify_outputs import VerifyOutputs
from rmq_formats.segment import open_storage
from rmq_formats.spark.job import EXIT_CLEAN, EXIT_FINDINGS, JobParser, job_parser, path_for_all, run_job
from rmq_formats.spark.runner import SparkRunner

FORMATS: Final = ("delta", "parquet", "json")
_AS_IN_STORE = "; default: as the store's files have it"


def parser() -> JobParser:
    """The job's arguments."""
    job = job_parser("verify", "Find what is wrong with a RocketMQ store. Nothing is written into it.")
    job.add_argument("--store", type=path_for_all, required=True, help="the store's root directory, or a URI")
    job.add_argument("--findings", metavar="PATH", help="write the findings there, as a table")
    job.add_argument("--findings-format", choices=FORMATS, default="json", help="json is lines of JSON")
    job.add_argument("--html", metavar="FILE", help="write a page for a browser there")
    job.add_argument(
        "--work",
        type=path_for_all,
        metavar="DIR",
        help="for intermediate files, a directory or a URI; on a cluster all executors must see it",
    )
    for option, setting in (
        ("--commitlog-file-bytes", "mappedFileSizeCommitLog"),
        ("--consumequeue-file-bytes", "mappedFileSizeConsumeQueue"),
        ("--consumequeue-ext-file-bytes", "mappedFileSizeConsumeQueueExt, 0 is none"),
        ("--index-slots", "maxHashSlotNum"),
        ("--index-entries", "maxIndexNum"),
    ):
        job.add_argument(option, type=int, help=f"{setting}{_AS_IN_STORE}")
    job.add_argument("--delay-levels", help="messageDelayLevel; default: as the store's queues have it")
    return job


def options(given: argparse.Namespace) -> VerifyOptions:
    """The verification's options out of the job's arguments. Raises OptionError."""
    return VerifyOptions(
        given.commitlog_file_bytes, given.consumequeue_file_bytes, given.consumequeue_ext_file_bytes,
        given.index_slots, given.index_entries,
        None if given.delay_levels is None else delay_levels_ms(given.delay_levels),
    )  # fmt: skip


def outputs(given: argparse.Namespace) -> VerifyOutputs:
    """Where results go; the JSON report is the shell's to write."""
    return VerifyOutputs(given.findings, given.findings_format, given.html)


def check(given: argparse.Namespace) -> None:
    """Refuse what can be refused before a session is started."""
    options(given).check()
    outputs(given).check(given.store, FORMATS)
    for option, path in (("--report", given.report), ("--work", given.work)):
        refuse_inside_store(given.store, option, path)
    storage, root = open_storage(given.store)
    if not storage.exists(root):
        raise StoreNotFoundError(f"{root}: no such store")


def write_delta(spark: SparkSession, findings: tuple[Finding, ...], path: str) -> None:
    """Write the findings as a Delta table, in the place of one that is there."""
    rows = spark.createDataFrame(findings_table(findings))
    rows.coalesce(1).write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


def main(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Run the verification on a session."""
    runner = SparkRunner(spark)
    runner.check_seen("--store", given.store)
    runner.check_shared("--work", given.work or tempfile.gettempdir())
    report = verify_store(given.store, options(given), runner, work=given.work)
    outputs(given).write(report, datetime.now(UTC))
    if given.findings is not None and given.findings_format == "delta":
        write_delta(spark, report.findings, given.findings)
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


if __name__ == "__main__":
    run_job(parser(), main, check=check)
