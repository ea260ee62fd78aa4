"""Verify a store: ``spark-submit jobs/verify.py --store DIR``. Nothing is written into it."""

import argparse
import tempfile
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from rmq_formats.read.stores import find_stores
from rmq_formats.storage.store_files import open_store
from rmq_offline.job_arguments import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    JobParser,
    add_options,
    add_sizes,
    add_stores,
    is_several,
    job_parser,
    store_sizes,
)
from rmq_offline.spark.job import run_job
from rmq_offline.spark.runner import SparkRunner
from rmq_offline.tasks.options import VERIFY_OPTIONS
from rmq_offline.verify.html.outputs import VerifyOutputs
from rmq_offline.verify.job import check_verifiable, verify_store
from rmq_offline.verify.phases.plan import refuse_inside_store
from rmq_offline.verify.report import findings_table
from rmq_offline.verify.stores import brokers_findings_table, refuse_inside_stores, verify_stores

FORMATS: Final = ("delta", "parquet", "json")


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("verify", "Verify a RocketMQ store against its CommitLog. Nothing is written into the store.")
    add_stores(job)
    add_options(job, VERIFY_OPTIONS)
    add_sizes(job)
    return job


def outputs(arguments: argparse.Namespace) -> VerifyOutputs:
    """Build the output paths; the JSON report is the job shell's to write."""
    return VerifyOutputs(arguments.findings, arguments.findings_format, arguments.html)


def check(arguments: argparse.Namespace) -> argparse.Namespace:
    """Refuse unusable arguments before a session is started; return usable arguments."""
    store_sizes(arguments).check()
    if is_several(arguments.store):
        check_several(arguments)
        return arguments
    (store,) = arguments.store
    outputs(arguments).check(store, FORMATS)
    for option, path in (("--report", arguments.report), ("--work", arguments.work)):
        refuse_inside_store(store, option, path)
    check_verifiable(open_store(store))
    return arguments


def check_several(arguments: argparse.Namespace) -> None:
    """Refuse arguments that cannot be used for several stores; a broken one is found out later, and reported."""
    stores = find_stores(arguments.store)
    outputs(arguments).check_several(stores, FORMATS)
    for option, path in (("--report", arguments.report), ("--work", arguments.work)):
        refuse_inside_stores(stores, option, path)


def write_delta(spark: SparkSession, findings: pa.Table, path: str) -> None:
    """Write a table of findings as a Delta table, in the place of an existing one."""
    rows = spark.createDataFrame(findings)
    rows.coalesce(1).write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


def needs_delta(arguments: argparse.Namespace) -> bool:
    """Return whether findings are written to a Delta table."""
    return arguments.findings is not None and str(arguments.findings_format) == "delta"


def main(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Run the verification on a session."""
    runner = SparkRunner(spark)
    runner.check_shared("--work", arguments.work or tempfile.gettempdir())
    if is_several(arguments.store):
        return main_several(arguments, spark, runner)
    (store,) = arguments.store
    runner.check_seen("--store", store)
    report = verify_store(store, store_sizes(arguments), runner, work=arguments.work)
    outputs(arguments).write(report, datetime.now(UTC))
    if arguments.findings is not None and arguments.findings_format == "delta":
        write_delta(spark, findings_table(report.findings), arguments.findings)
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


def main_several(arguments: argparse.Namespace, spark: SparkSession, runner: SparkRunner) -> tuple[dict[str, Any], int]:
    """Run the verification of several stores."""
    report = verify_stores(arguments.store, store_sizes(arguments), runner, work=arguments.work)
    outputs(arguments).write_several(report)
    if arguments.findings is not None and arguments.findings_format == "delta":
        write_delta(spark, brokers_findings_table(report), arguments.findings)
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


if __name__ == "__main__":
    run_job(parser(), main, check=check, needs_delta=needs_delta)
