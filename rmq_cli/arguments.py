"""Arguments and options that several commands share."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_cli import output
from rmq_formats.errors import OptionError
from rmq_formats.times import check_milliseconds
from rmq_offline.tasks.options import CONFIG_HELP, REPORT, SIZE_OPTIONS, Option

if TYPE_CHECKING:
    from rmq_formats.storage.broker_conf import BrokerConf

_MIN_MS_DIGITS: Final = 11  # fewer are a date, as 20260731

StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="The store's root directory, or a URI.", show_default=False)
]
StorePaths = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE...",
        help="The store's root directory, or a URI. Several: more of them, a quoted pattern as '/data/*/store', or a "
        "TOML file that names them.",
        show_default=False,
    ),
]
AnyPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A store, its commitlog, consumequeue or index directory, one queue's directory, or one file. "
        "Local, or a URI as s3://bucket/store.",
        show_default=False,
    ),
]

BrokerConfFile = Annotated[
    str | None, typer.Option("-c", "--config", metavar="FILE", help=CONFIG_HELP, show_default=False)
]


def annotation(option: Option) -> Any:
    """Return the annotation of a parameter that is an option of a command."""
    if option.kind is bool:
        return Annotated[bool, typer.Option(option.flag, help=option.help)]
    kind = list[str] if option.kind is list else option.kind
    declared = typer.Option(option.flag, metavar=option.metavar, help=option.help)
    return Annotated[kind if option.default is not None else kind | None, declared]


Report = annotation(REPORT)
Work = Annotated[
    str | None, typer.Option(metavar="DIR", help="For intermediate files; default: the temporary directory.")
]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes; default: one for each processor.")]
AsOneJson = Annotated[bool, typer.Option("--json", help="The report as one JSON object.")]


def parse_time(text: str) -> int | datetime:
    """Parse a time: ISO 8601, or milliseconds since 1970. Raises OptionError."""
    if text.isdecimal() and len(text) >= _MIN_MS_DIGITS:
        try:
            return check_milliseconds(int(text))
        except ValueError as error:
            raise OptionError(f"--time {text}: {error}") from None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"--time {text}: not a time such as 2026-07-31T12:00:00+08:00") from None


def resolve_store_list(stores: list[str]) -> list[str] | None:
    """Return the paths of several stores, absolute or URIs; None for a single store."""
    from rmq_formats.read.stores import names_several  # noqa: PLC0415 # --help does not need it

    if len(stores) == 1 and not names_several(stores[0]):
        return None
    return [store if "://" in store else str(Path(store).absolute()) for store in stores]


def apply_broker_conf(config: str | None, stores: list[str]) -> "BrokerConf | None":
    """Read the operator's broker.conf, which places the logs of these stores. Raises OptionError."""
    output.command_settings = {}
    if config is None:
        return None
    output.command_settings = {"config": config}
    from rmq_formats.read.stores import find_stores  # noqa: PLC0415
    from rmq_formats.storage.broker_conf import use_broker_conf  # noqa: PLC0415

    roots = stores if resolve_store_list(stores) is None else [entry.path for entry in find_stores(stores)]
    return use_broker_conf(config, roots)


def with_options(options: Sequence[Option]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Replace a command's parameter ``arguments`` with options; their values arrive as those of a job do."""

    def replace_arguments(command: Callable[..., int]) -> Callable[..., int]:
        def run(**values: Any) -> int:
            arguments = Namespace(**{option.name: values.pop(option.name) for option in options})
            return command(arguments=arguments, **values)

        return _with_parameters(run, command, "arguments", {option: annotation(option) for option in options})

    return replace_arguments


def with_store_sizes(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's argument ``sizes`` with the options of a store's sizes; the command raises OptionError."""

    def run(**arguments: Any) -> int:
        from rmq_offline.verify.phases.plan import VerifyOptions  # noqa: PLC0415 # --help does not need it

        stores = arguments["stores"] if "stores" in arguments else [arguments["store"]]
        conf = apply_broker_conf(arguments.pop("config"), stores)
        size_arguments = {option.name: arguments.pop(option.name) for option in SIZE_OPTIONS}
        output.command_settings |= {name: value for name, value in size_arguments.items() if value is not None}
        sizes = VerifyOptions.from_arguments(size_arguments, conf)
        return command(sizes=sizes, **arguments)

    config = Option("config", str, "FILE", CONFIG_HELP)
    options = {config: BrokerConfFile, **{option: annotation(option) for option in SIZE_OPTIONS}}
    return _with_parameters(run, command, "sizes", options)


def _with_parameters(
    run: Callable[..., int], command: Callable[..., int], placeholder: str, options: Mapping[Option, Any]
) -> Callable[..., int]:
    """Let a function have a command's signature, with options in place of one parameter, for typer to read."""
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name != placeholder:
            parameters.append(parameter)
            continue
        for option, annotated in options.items():
            default = False if option.kind is bool else option.default
            parameters.append(Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotated))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run
