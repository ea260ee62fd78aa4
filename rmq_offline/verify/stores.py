"""Verification of several stores in common batches of tasks."""

from collections.abc import Sequence

import pyarrow as pa

from rmq_formats.read.stores import BrokerStore, find_stores
from rmq_offline.tasks.brokers_report import BrokersReport, run_on_stores
from rmq_offline.tasks.runner import Runner
from rmq_offline.verify.job import verify_steps
from rmq_offline.verify.phases.plan import VerifyOptions, refuse_inside_store
from rmq_offline.verify.report import VerifyReport, findings_table


def verify_stores(
    store_names: Sequence[str], options: VerifyOptions, runner: Runner, *, work: str | None = None
) -> BrokersReport[VerifyReport]:
    """Verify several stores, whose tasks run mixed.

    Args:
        store_names: paths, patterns and TOML files, see ``rmq_formats.read.stores``.
        work: directory or URI for intermediate files.

    Raises:
        RmqError: the stores cannot be found, or none of them can be verified.
    """
    stores = find_stores(store_names)
    parallelism = -(-runner.parallelism // len(stores))
    steps = [verify_steps(store.path, options, parallelism, work=work) for store in stores]
    return run_on_stores("verify", store_names, stores, steps, runner)


def refuse_inside_stores(stores: Sequence[BrokerStore], option: str, path: str | None) -> None:
    """Refuse an output path inside one of the stores. Raises OptionError."""
    for store in stores:
        refuse_inside_store(store.path, option, path)


def brokers_findings_table(report: BrokersReport[VerifyReport]) -> pa.Table:
    """Convert the findings of all stores to an Arrow table, a row each, with their cluster and broker."""
    tables = []
    for store, store_report in report.reports:
        table = findings_table(store_report.findings)
        for name, value in (("cluster", store.cluster), ("broker_name", store.broker)):
            table = table.append_column(name, pa.repeat(pa.scalar(value, pa.string()), table.num_rows))
        tables.append(table)
    return pa.concat_tables(tables)
