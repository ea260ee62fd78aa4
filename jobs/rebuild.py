"""Rebuild ConsumeQueue and Index of a store from its CommitLog: ``spark-submit jobs/rebuild.py --store DIR``."""

import argparse
import functools
import tempfile
from typing import Any

from pyspark.sql import SparkSession

from rmq_formats.read.stores import find_stores
from rmq_formats.rebuild.job import check_rebuild, rebuild_store
from rmq_formats.rebuild.options import RebuildOptions, live_topics_path, options_from_arguments
from rmq_formats.rebuild.publication import Terms, terms_from_arguments
from rmq_formats.rebuild.several import rebuild_stores
from rmq_formats.spark.job import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    JobParser,
    add_sizes,
    add_stores,
    is_several,
    job_parser,
    path_for_all,
    run_job,
    store_sizes,
)
from rmq_formats.spark.runner import SparkRunner
from rmq_formats.tasks.origin import Leftover, leftover_word


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("rebuild", "Rebuild ConsumeQueue and Index of a RocketMQ store from its CommitLog.")
    add_stores(job)
    job.add_argument(
        "--out", type=path_for_all, help="directory or URI to write to, instead of the store; of several, by broker"
    )
    job.add_argument("--what", choices=["all", "consumequeue", "index"], default="all", help="what to rebuild")
    add_sizes(job)
    job.add_argument("--from-log-alone", action="store_true", help="make queues of the log, whatever the store's know")
    job.add_argument("--resume", action="store_true", help="complete what an interrupted run has left, whoever left it")
    job.add_argument("--start-anew", action="store_true", help="set aside what an interrupted run has left")
    job.add_argument("--topics-json", metavar="FILE", help="of --only-live-topics; default: the store's own")
    job.add_argument("--only-live-topics", action="store_true", help="leave out topics that topics.json lacks")
    job.add_argument("--plan", action="store_true", help="report what consumers would get; write nothing")
    job.add_argument(
        "--accept",
        metavar="NAME",
        action="append",
        help="a topic, TOPIC/QUEUE or all: its messages may leave their queues, and its ends may be lowered",
    )
    job.add_argument("--work", type=path_for_all, metavar="DIR", help="of --plan: directory or URI for its files")
    return job


def options(given: argparse.Namespace, store: str) -> RebuildOptions:
    """Build the options of rebuilding a store from the arguments. Raises OptionError, StoreError."""
    live_topics_of = live_topics_path(given.only_live_topics, given.topics_json, store)
    return options_from_arguments(
        given.what, store_sizes(given), store, live_topics_of, from_log_alone=given.from_log_alone
    )


def leftover(given: argparse.Namespace) -> Leftover:
    """Return the operator's word on what an interrupted run has left. Raises OptionError."""
    return leftover_word(resume=given.resume, start_anew=given.start_anew)


def terms(given: argparse.Namespace) -> Terms:
    """Build the terms of the publication from the arguments. Raises OptionError."""
    return terms_from_arguments(plan=given.plan, accept=given.accept, work=given.work, out=given.out)


def check(given: argparse.Namespace) -> None:
    """Refuse unusable arguments before a session is started."""
    leftover(given)
    terms(given)
    if is_several(given.store):
        find_stores(given.store)
        return
    (store,) = given.store
    check_rebuild(store, given.out, options(given, store))


def main(given: argparse.Namespace, spark: SparkSession) -> tuple[dict[str, Any], int]:
    """Run the rebuild on a session."""
    runner = SparkRunner(spark)
    if is_several(given.store):
        return main_several(given, runner)
    (store,) = given.store
    runner.check_seen("--store", store)
    if given.plan:
        runner.check_shared("--work", given.work or tempfile.gettempdir())
    else:
        runner.check_shared("--out" if given.out else "--store", given.out or store)
    report = rebuild_store(
        store, given.out, options(given, store), runner, leftover=leftover(given), terms=terms(given)
    )
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


def main_several(given: argparse.Namespace, runner: SparkRunner) -> tuple[dict[str, Any], int]:
    """Run the rebuild of several stores."""
    if given.plan:
        runner.check_shared("--work", given.work or tempfile.gettempdir())
    else:
        for place in [given.out] if given.out else [store.path for store in find_stores(given.store)]:
            runner.check_shared("--out" if given.out else "--store", place)
    report = rebuild_stores(
        given.store, given.out, functools.partial(options, given), runner, leftover(given), terms(given)
    )
    is_clean = not report.failed and all(own.is_clean for _, own in report.reports)
    return report.to_dict(), EXIT_CLEAN if is_clean else EXIT_FINDINGS


if __name__ == "__main__":
    run_job(parser(), main, check=check)
