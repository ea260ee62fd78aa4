"""Rebuild of several stores in common batches of tasks."""

from collections.abc import Callable, Sequence

from rmq_formats.errors import OptionError
from rmq_formats.read.stores import BrokerStore, find_stores
from rmq_formats.storage.segments import split_query
from rmq_offline.rebuild.job import rebuild_steps
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.publication import DEFAULT_PUBLISHING, PublishOptions
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.tasks.brokers_report import BrokersReport, run_on_stores
from rmq_offline.tasks.job_steps import JobSteps
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import Runner

OptionsOf = Callable[[str], RebuildOptions]


def rebuild_stores(
    stores_given: Sequence[str],
    out: str | None,
    options_of: OptionsOf,
    runner: Runner,
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE,
    publishing: PublishOptions = DEFAULT_PUBLISHING,
) -> BrokersReport[RebuildReport]:
    """Rebuild several stores, whose tasks run mixed, and publish each one whole. Raises RmqError.

    Args:
        stores_given: paths, patterns and TOML files, see ``rmq_formats.read.stores``.
        out: directory or URI below which each broker's files are published by its name; None is in the stores.
    """
    stores = find_stores(stores_given)
    parallelism = -(-runner.parallelism // len(stores))

    def steps(store: BrokerStore) -> JobSteps[RebuildReport]:
        target = None if out is None else _broker_target(out, store)
        options = options_of(store.path)
        return (yield from rebuild_steps(store.path, target, options, parallelism, None, leftover, publishing))

    return run_on_stores("rebuild", stores_given, stores, list(map(steps, stores)), runner)


def _broker_target(out: str, store: BrokerStore) -> str:
    """Return the path or URI of a broker's files: its name below ``out``."""
    name = str(store.broker)
    if any(part in {"", ".", ".."} for part in name.split("/")):
        raise OptionError(f"--out {out}: broker {name!r} is no name of a directory")
    location, query = split_query(out) if "://" in out else (out, "")
    return f"{location.rstrip('/')}/{name}{query}"
