"""``rmq doctor``: tells how open a running broker or name server is."""

from typing import Annotated

import typer

from rmq_core.cli.arguments import AsOneJson


def doctor(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Of a broker or name server.", show_default=False)
    ],
    *,
    security: Annotated[  # noqa: ARG001 # there is no other examination yet
        bool, typer.Option("--security", help="See what a stranger gets; the only examination.")
    ] = True,
    ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="PEM that its certificate is checked with.")
    ] = None,
    as_json: AsOneJson = False,
) -> int:
    """Tell how open a running broker or name server is: what a stranger gets there. Nothing is changed.

    Ours or Apache's. The exit code is 1 if anything stands open.
    """
    from rmq_core.cli.doctor import run as doctor_run  # noqa: PLC0415 # --help does not need it

    return doctor_run.run(address, ca, as_json=as_json)
