"""Rebuild ConsumeQueue and Index of a store from its CommitLog: ``spark-submit jobs/rebuild.py --store DIR``."""

import argparse
import functools
import tempfile
from typing import Any

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
from rmq_offline.rebuild.job import check_rebuild, rebuild_store
from rmq_offline.rebuild.options import RebuildOptions, parse_rebuild_options
from rmq_offline.rebuild.publication import parse_publish_options
from rmq_offline.rebuild.stores import rebuild_stores
from rmq_offline.spark.job import run_job
from rmq_offline.spark.runner import SparkRunner
from rmq_offline.tasks.options import REBUILD_OPTIONS
from rmq_offline.tasks.origin import parse_interrupted_run_policy


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("rebuild", "Rebuild ConsumeQueue and Index of a RocketMQ store from its CommitLog.")
    add_stores(job)
    add_options(job, REBUILD_OPTIONS)
    add_sizes(job)
    return job


def options(arguments: argparse.Namespace, store: str) -> RebuildOptions:
    """Build the options of rebuilding a store from the arguments. Raises OptionError, StoreError."""
    return parse_rebuild_options(arguments, store_sizes(arguments), store)


def check(arguments: argparse.Namespace) -> argparse.Namespace:
    """Refuse unusable arguments before a session is started; return usable arguments."""
    parse_interrupted_run_policy(arguments)
    parse_publish_options(arguments)
    if is_several(arguments.store):
        find_stores(arguments.store)
        return arguments
    (store,) = arguments.store
    rebuild_options = options(arguments, store)
    check_rebuild(open_store(store), arguments.out, rebuild_options)
    return arguments


def main(arguments: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Run the rebuild on a session."""
    runner = SparkRunner(spark)
    if is_several(arguments.store):
        return main_several(arguments, runner)
    (store,) = arguments.store
    runner.check_seen("--store", store)
    if arguments.plan:
        runner.check_shared("--work", arguments.work or tempfile.gettempdir())
    else:
        runner.check_shared("--out" if arguments.out else "--store", arguments.out or store)
    report = rebuild_store(
        store,
        arguments.out,
        options(arguments, store),
        runner,
        leftover=parse_interrupted_run_policy(arguments),
        publishing=parse_publish_options(arguments),
    )
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


def main_several(arguments: argparse.Namespace, runner: SparkRunner) -> tuple[dict[str, Any], int]:
    """Run the rebuild of several stores."""
    if arguments.plan:
        runner.check_shared("--work", arguments.work or tempfile.gettempdir())
    else:
        for place in [arguments.out] if arguments.out else [store.path for store in find_stores(arguments.store)]:
            runner.check_shared("--out" if arguments.out else "--store", place)
    report = rebuild_stores(
        arguments.store,
        arguments.out,
        functools.partial(options, arguments),
        runner,
        parse_interrupted_run_policy(arguments),
        parse_publish_options(arguments),
    )
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


if __name__ == "__main__":
    run_job(parser(), main, check=check)
