"""Arguments of ``rmq export`` and of the job ``export_delta.py``, with the access to a cluster."""

import argparse
from collections.abc import Sequence

from rmq_cli.access import add_access, settings_from_arguments
from rmq_formats.errors import OptionError
from rmq_lakehouse.command.arguments import export_parser as job_export_parser
from rmq_offline.job_arguments import JobParser, is_several


def parser() -> JobParser:
    """Define the arguments of the job."""
    job = job_export_parser()
    add_access(job)
    return job


def export_parser(program: str) -> JobParser:
    """Define the arguments of the command, which are those of the job."""
    job = parser()
    job.prog, job.epilog = program, "STORE may stand in the place of --store STORE."
    return job


def with_store_option(program: str, words: Sequence[str]) -> list[str]:
    """Return the words of a command line with ``--store`` in front of each store that stands alone."""
    _, unknown = export_parser(program).parse_known_args(words)
    stores = [word for word in unknown if not word.startswith("-")]
    options = list(words)
    for store in stores:
        options.remove(store)
    return [*(word for store in stores for word in ("--store", store)), *options]


def check_source(arguments: argparse.Namespace) -> None:
    """Refuse options that belong to another kind of source."""
    if (arguments.store is None) == (arguments.namesrv is None):
        raise OptionError("one of --store and --namesrv is needed: what to export")
    if arguments.cluster is not None and (arguments.store is None or not is_several(arguments.store)):
        raise OptionError("--cluster is for several stores: it names the cluster of stores without one")
    if arguments.tier is not None and arguments.store is None:
        raise OptionError("--tier needs --store: the store of the broker whose tier it is")
    if arguments.include is not None and (arguments.namesrv is not None or arguments.tier is not None):
        raise OptionError("--include chooses among the records of a CommitLog: it needs --store without --tier")
    if arguments.namesrv is None:
        given_settings = [
            name for name, value in settings_from_arguments(dict(vars(arguments))).items() if value is not None
        ]
        if given_settings:
            raise OptionError("credentials and TLS are for --namesrv")
        if arguments.max_messages_per_trigger is not None and arguments.tier is None:
            raise OptionError("--max-messages-per-trigger is for --namesrv and --tier")
