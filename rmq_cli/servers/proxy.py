"""``rmq proxy``: runs the gRPC proxy of a cluster, for the clients of RocketMQ 5."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.access import with_access
from rmq_cli.servers.serving import LogFormat, LogFormatOption, log_to_stderr, parse_address, serve_until_stopped
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_core.client.access import Access


@with_access
def proxy(
    access: "Access",
    namesrv: Annotated[
        str, typer.Option("-n", "--namesrv", metavar="HOST:PORT", help="Name servers, separated by semicolons.")
    ] = "127.0.0.1:9876",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen there.")] = "127.0.0.1:8081",
    authorize: Annotated[
        bool, typer.Option(help="Ask policies what a user may do; with --credentials.", show_default=True)
    ] = True,
    auth_broker: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Brokers that say who users are, separated by semicolons. [default: the first masters known]",
            show_default=False,
        ),
    ] = "",
    tls_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take TLS alone, with this file's certificate (docs/tls.md). [default: TLS and plain]",
        ),
    ] = None,
    metric_collector_mode: Annotated[
        str, typer.Option(metavar="off|on|proxy", help="Whether clients send metrics, and where: see docs/proxy.md.")
    ] = "off",
    metric_collector_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The collector of clients' metrics, with the mode on.")
    ] = "",
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Run the gRPC proxy of a cluster until Ctrl-C or SIGTERM.

    With --credentials, those of a super user, its clients have to sign their calls, and the brokers' users and
    policies decide.
    """
    check_installed()
    from rmq_core.client.options import ClientOptions  # noqa: PLC0415 # --help does not need it
    from rmq_core.proxy.server import Proxy  # noqa: PLC0415
    from rmq_core.proxy.sessions import Collector  # noqa: PLC0415
    from rmq_core.remoting.access.tls import read_tls_file  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    log_to_stderr(log_format)
    parse_address("--listen", listen)
    auth_brokers = [address.strip() for address in auth_broker.split(";") if address.strip()]
    for address in auth_brokers:
        parse_address("--auth-broker", address)
    if auth_brokers and access.credentials is None:
        raise OptionError("--auth-broker needs --credentials: users cannot be looked up without credentials")
    serving = Proxy(
        namesrv,
        listen,
        access.credentials,
        ClientOptions(tls=access.tls),
        authorizes=authorize,
        tls=None if tls_config is None else read_tls_file(str(tls_config)),
        collector=Collector.parse(metric_collector_mode, metric_collector_address),
        auth_brokers=auth_brokers,
    )
    run(serve_until_stopped(serving, started=lambda: _print_address(serving.address)))
    return 0


def check_installed() -> None:
    """Refuse to go on without gRPC. Raises OptionError."""
    if find_spec("grpc") is None or find_spec("google.protobuf") is None:
        raise OptionError("the proxy needs gRPC: pip install 'rmq-lake[proxy]'")


def _print_address(address: str) -> None:
    typer.echo(f"proxy {address}")
    sys.stdout.flush()
