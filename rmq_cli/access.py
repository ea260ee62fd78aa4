"""Options of commands that talk to a cluster: credentials and TLS. No secret is an argument, which ps would show."""

from argparse import ArgumentParser
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from rmq_core.client.access import Access

_FILE: Final = "FILE"
_OPTIONS: Final[dict[str, Any]] = {
    "credentials": Annotated[
        str | None,
        typer.Option(metavar=_FILE, help="accessKey, secretKey and more: a tools.yml, TOML or properties, mode 600."),
    ],
    "access_key": Annotated[str | None, typer.Option(metavar="K", help="The access key. [env: RMQ_ACCESS_KEY]")],
    "secret_key_file": Annotated[
        str | None,
        typer.Option(
            metavar=_FILE,
            help="File with the secret key, mode 600. [env: RMQ_SECRET_KEY_FILE; RMQ_SECRET_KEY is the key itself]",
        ),
    ],
    "tls": Annotated[bool, typer.Option("--tls", help="Use TLS with name servers and brokers.")],
    "tls_ca": Annotated[
        str | None, typer.Option(metavar=_FILE, help="PEM of the authorities to trust. [default: the system's]")
    ],
    "tls_insecure": Annotated[bool, typer.Option("--tls-insecure", help="Do not check the servers' certificates.")],
}
_SETTINGS: Final = {
    "credentials": "credentialsFile", "access_key": "accessKey", "secret_key_file": "secretKeyFile", "tls": "useTLS",
    "tls_ca": "tls.client.trustCertPath", "tls_insecure": "tls.client.authServer",
}  # fmt: skip


def access_parameters() -> list[Parameter]:
    """Build the keyword parameters of the options, for typer."""
    switches = {"tls", "tls_insecure"}
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False if name in switches else None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]


def add_access(job: ArgumentParser) -> None:
    """Add the options to the arguments of a job."""
    job.add_argument("--credentials", metavar="FILE", help="accessKey, secretKey and more; a file of mode 600")
    job.add_argument("--access-key", metavar="K", help="the access key; default: RMQ_ACCESS_KEY")
    job.add_argument(
        "--secret-key-file",
        metavar="FILE",
        help="file with the secret key, mode 600; default: RMQ_SECRET_KEY_FILE, or the key itself in RMQ_SECRET_KEY",
    )
    job.add_argument("--tls", action="store_true", help="use TLS with name servers and brokers")
    job.add_argument("--tls-ca", metavar="FILE", help="PEM of the authorities to trust; default: the system's")
    job.add_argument("--tls-insecure", action="store_true", help="do not check the servers' certificates")


def access_from_arguments(arguments: dict[str, Any]) -> "Access":
    """Remove the access options from a command's arguments; build the access from options and environment.

    Raises OptionError if the access options are incomplete or contradict each other.
    """
    from rmq_core.client.access import access_from  # noqa: PLC0415 # --help does not need it

    return access_from(settings_from_arguments(arguments))


def settings_from_arguments(arguments: dict[str, Any]) -> dict[str, str | None]:
    """Remove the access options from a command's arguments; return settings by name, None where an option is absent."""
    values = {_SETTINGS[name]: arguments.pop(name) for name in _OPTIONS}
    values["useTLS"] = "true" if values["useTLS"] else None
    values["tls.client.authServer"] = "false" if values["tls.client.authServer"] else None
    return values


def with_access(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's argument ``access`` with its options; the command raises OptionError as ``access_from``."""

    def run(**arguments: Any) -> int:
        return command(access=access_from_arguments(arguments), **arguments)

    command_parameters = signature(command).parameters.values()
    parameters = [
        *(part.replace(kind=Parameter.KEYWORD_ONLY) for part in command_parameters if part.name != "access"),
        *access_parameters(),
    ]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run
