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
    add_sizes,
    add_stores,
    is_several,
    job_parser,
    path_for_all,
    store_sizes,
)
from rmq_offline.rebuild.job import check_rebuild, rebuild_store
from rmq_offline.rebuild.options import RebuildOptions, live_topics_path, options_from_arguments
from rmq_offline.rebuild.publication import PublishOptions, publishing_from_arguments
from rmq_offline.rebuild.stores import rebuild_stores
from rmq_offline.spark.job import run_job
from rmq_offline.spark.runner import SparkRunner
from rmq_offline.tasks.origin import LeftoverPolicy, parse_leftover_policy


def parser() -> JobParser:
    """Define the job's arguments."""
    job = job_parser("rebuild", "Rebuild ConsumeQueue and Index of a RocketMQ store from its CommitLog.")
    add_stores(job)
    job.add_argument(
        "--out", type=path_for_all, help="directory or URI to write to, instead of the store; of several, by broker"
    )
    job.add_argument("--what", choices=["all", "consumequeue", "index"], default="all", help="what to rebuild")
    add_sizes(job)
    job.add_argument("--from-log-alone", action="store_true", help="make queues from the log, ignore the store's")
    job.add_argument("--resume", action="store_true", help="resume an interrupted run, even another user's")
    job.add_argument("--start-anew", action="store_true", help="set an interrupted run aside (renamed), and start anew")
    job.add_argument("--topics-json", metavar="FILE", help="of --only-live-topics; default: the store's own")
    job.add_argument("--only-live-topics", action="store_true", help="leave out topics that topics.json lacks")
    job.add_argument("--plan", action="store_true", help="report the changes for consumers; write nothing")
    job.add_argument(
        "--accept",
        metavar="NAME",
        action="append",
        help="a topic, TOPIC/QUEUE or all: its messages may leave their queues, and its ends may be lowered",
    )
    job.add_argument("--work", type=path_for_all, metavar="DIR", help="of --plan: directory or URI for its files")
    return job


def options(arguments: argparse.Namespace, store: str) -> RebuildOptions:
    """Build the options of rebuilding a store from the arguments. Raises OptionError, StoreError."""
    live_topics_of = live_topics_path(arguments.only_live_topics, arguments.topics_json, store)
    return options_from_arguments(
        arguments.what, store_sizes(arguments), store, live_topics_of, from_log_alone=arguments.from_log_alone
    )


def leftover(arguments: argparse.Namespace) -> LeftoverPolicy:
    """Return the operator's word on what an interrupted run has left. Raises OptionError."""
    return parse_leftover_policy(resume=arguments.resume, start_anew=arguments.start_anew)


def publishing(arguments: argparse.Namespace) -> PublishOptions:
    """Build the options of the publication from the arguments. Raises OptionError."""
    return publishing_from_arguments(
        plan=arguments.plan, accept=arguments.accept, work=arguments.work, out=arguments.out
    )


def check(arguments: argparse.Namespace) -> argparse.Namespace:
    """Refuse unusable arguments before a session is started; return usable arguments."""
    leftover(arguments)
    publishing(arguments)
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
        leftover=leftover(arguments),
        publishing=publishing(arguments),
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
        leftover(arguments),
        publishing(arguments),
    )
    return report.to_dict(), EXIT_CLEAN if report.is_clean else EXIT_FINDINGS


if __name__ == "__main__":
    run_job(parser(), main, check=check)
