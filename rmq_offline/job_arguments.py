"""Arguments of the jobs, parsed without Spark."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rmq_formats.errors import OptionError, one_line
from rmq_formats.read.stores import find_stores, names_several, store_paths
from rmq_formats.storage.broker_conf import BrokerConf, use_broker_conf
from rmq_formats.storage.segments import canonical_path
from rmq_offline.tasks.options import CONFIG_HELP, REPORT, SIZE_OPTIONS, Option, expand_home
from rmq_offline.verify.phases.plan import VerifyOptions

EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2

Value = TypeVar("Value")


class JobParser(argparse.ArgumentParser):
    """Argument parser of a job that reports a wrong argument in one line, and of an unknown one the name alone."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; values of unknown ones are not shown, since they may be secrets."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
            self.error(f"unknown arguments: {' '.join(names or unknown)}")
        for name, value in vars(arguments).items():
            setattr(arguments, name, expand_home(value))
        return arguments

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with 2."""
        sys.stderr.write(f"{self.prog}: {one_line(message)} (see --help)\n")
        sys.exit(EXIT_FAILED)


def job_parser(name: str, description: str) -> JobParser:
    """Create a parser with the arguments that every job has."""
    parser = JobParser(prog=f"{name}.py", description=description, allow_abbrev=False)
    add_options(parser, [REPORT])
    return parser


def add_options(parser: JobParser, options: Iterable[Option]) -> None:
    """Add options that a command has, too."""
    for option in options:
        if option.kind is bool:
            parser.add_argument(option.flag, action="store_true", help=option.help)
            continue
        parser.add_argument(
            option.flag,
            type=path_for_all if option.is_path else str if option.kind is list else option.kind,
            action="append" if option.kind is list else "store",
            choices=option.choices or None,
            default=option.default,
            help=option.help + option.job_help,
            metavar=None if option.choices else option.metavar,
        )


def check_report(report: str | None, stores: str | Sequence[str] | None) -> None:
    """Refuse a file for the report that cannot be written, or is within a store. Raises OptionError."""
    if report is None:
        return
    if not Path(report).absolute().parent.is_dir():
        raise OptionError(f"--report {report}: no such directory")
    if Path(report).is_dir():
        raise OptionError(f"--report {report}: is a directory. Give a file")
    for root in store_paths([stores] if isinstance(stores, str) else stores or ()):
        if canonical_path(report).is_relative_to(canonical_path(root)):
            raise OptionError(f"--report {report}: is in the store. Give a file outside of it")


def add_stores(parser: JobParser, *, required: bool = True) -> None:
    """Add the argument ``--store`` of a job over several stores; ``is_several`` tests its value."""
    parser.add_argument(
        "--store",
        type=path_for_all,
        required=required,
        action="append",
        help="the store's root directory, or a URI; several: given again, a pattern, or a TOML file that names them",
    )


def add_sizes(parser: JobParser) -> None:
    """Add ``-c broker.conf`` and the options of a store's sizes; ``store_sizes`` makes options of them."""
    add_broker_conf(parser)
    add_options(parser, SIZE_OPTIONS)


def add_broker_conf(parser: JobParser) -> None:
    """Add ``-c broker.conf``; ``apply_broker_conf`` reads it."""
    parser.add_argument("-c", "--config", metavar="FILE", help=CONFIG_HELP)


def apply_broker_conf(arguments: argparse.Namespace) -> BrokerConf | None:
    """Apply the operator's broker.conf to the log paths of the job's stores. Raises OptionError."""
    if arguments.config is None:
        return None
    stores = [arguments.store] if isinstance(arguments.store, str) else arguments.store or []
    if stores and is_several(stores):
        stores = [store.path for store in find_stores(stores)]
    return use_broker_conf(arguments.config, stores)


def store_sizes(job_arguments: argparse.Namespace) -> VerifyOptions:
    """Make options of the arguments of ``add_sizes``. Raises OptionError."""
    arguments = {option.name: getattr(job_arguments, option.name) for option in SIZE_OPTIONS}
    return VerifyOptions.from_arguments(
        arguments, apply_broker_conf(job_arguments), getattr(job_arguments, "tier", None)
    )


def is_several(stores: list[str]) -> bool:
    """Return whether ``--store`` names several stores."""
    return len(stores) > 1 or names_several(stores[0])


def option_name(argument: str) -> str:
    """Return the option of an argument on the command line."""
    return f"--{argument.replace('_', '-')}"


def parse_argument(arguments: argparse.Namespace, argument: str, parse: Callable[[str], Value]) -> Value | None:
    """Parse an argument; None if the argument is absent. Raises OptionError."""
    text = getattr(arguments, argument)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"{option_name(argument)} {text!r}: {error}") from error


def path_for_all(path: str) -> str:
    """Make a path absolute, since executors do not run in the driver's working directory; a URI stays as it is."""
    return path if not path or "://" in path else str(Path(expand_home(path)).absolute())
