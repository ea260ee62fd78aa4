"""``rmq doctor``: answers questions about a store, and audits access to a running broker or name server."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from rmq_cli.arguments import AsOneJson, BrokerConfFile
from rmq_formats.errors import OptionError

_ADDRESS: Final = re.compile(r"[^/]+:[0-9]+")


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|HOST:PORT", help="A store's root directory; or a broker or name server.", show_default=False
        ),
    ],
    *,
    config: BrokerConfFile = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", metavar="FILE", help="A store.log or broker.log; may be given again.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare log and queues where the log is larger than 1 GiB, too.")
    ] = False,
    security: Annotated[  # noqa: ARG001 # there is no other examination of a server yet
        bool, typer.Option("--security", hidden=True, help="Of a server: list requests without authentication.")
    ] = True,
    ca: Annotated[
        str | None,
        typer.Option(
            "--tls-ca", metavar="FILE", help="PEM file with the authorities that signed the server's certificate."
        ),
    ] = None,
    as_json: AsOneJson = False,
) -> int:
    """Explain why a broker does not start with a store, why a group gets no messages, why a lag is negative.

    Each answer has two or three lines: what is seen, why it matters, and the command to run next. Nothing is changed.

    HOST:PORT is a running broker or name server: the requests that it accepts without authentication are listed.

    The exit code is 1 if something is wrong, or accepted without authentication.
    """
    if _ADDRESS.fullmatch(target) and not Path(target).exists():
        if config is not None or log or verify:
            raise OptionError("--config, --log and --verify: only for a store")
        from rmq_cli.doctor import run as doctor_run  # noqa: PLC0415 # --help does not need it

        return doctor_run.run(target, ca, as_json=as_json)
    from rmq_cli.doctor import store_run  # noqa: PLC0415

    return store_run.run(target, config, log or [], verifies=verify, as_json=as_json)
