"""``rmq standalone``: runs a name server and a broker in one process."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.servers.broker import MetricsPort
from rmq_cli.servers.proxy import check_installed
from rmq_cli.servers.serving import (
    LogFormat,
    LogFormatOption,
    listen_flags,
    log_ignored_keys,
    log_to_stderr,
    parse_address,
    serve_until_stopped,
)
from rmq_formats.codecs.paths import config_dir
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_core.broker.config import BrokerConfig
    from rmq_core.proxy.server import Proxy


def standalone(
    store: Annotated[Path, typer.Option(metavar="DIR", help="The store's directory; created if missing.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="The name server listens there.")] = "127.0.0.1:9876",
    broker_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The broker listens there, and two ports below. [default: 127.0.0.1:10911]",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="The broker's settings: broker.conf properties, or TOML."),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Run the gRPC proxy as well, for clients of RocketMQ 5, there."),
    ] = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Run a name server and a broker in one process. Stops on Ctrl-C or SIGTERM."""
    from rmq_core.broker.broker import Broker  # noqa: PLC0415
    from rmq_core.broker.config import load_config  # noqa: PLC0415 # --help does not need it
    from rmq_core.broker.metrics.http import run_with_metrics  # noqa: PLC0415
    from rmq_core.broker.tables.table_file import log  # noqa: PLC0415
    from rmq_core.namesrv.config import load_config as load_namesrv_config  # noqa: PLC0415
    from rmq_core.namesrv.server import NameServer  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    log_to_stderr(log_format)
    flags = listen_flags("--broker-listen", broker_listen)
    settings, store_settings, passed_over = load_config(str(store), config, flags)
    log_ignored_keys(log, config, passed_over)
    namesrv_flags = {
        **listen_flags("--listen", listen),
        "kv_config_path": f"{config_dir(store_settings.root)}/kvConfig.json",
        "order_message_enable": True,
        "tls_server_mode": settings.tls_server_mode,
        "tls_config_file": settings.tls_config_file,
        "tls_enable": settings.tls_enable,
    }
    namesrv_settings, _ = load_namesrv_config(flags=namesrv_flags)
    if proxy is not None:
        _check_proxy(settings, proxy)

    async def serve() -> None:
        async with NameServer(namesrv_settings) as namesrv:
            broker = Broker(replace(settings, namesrv_addr=namesrv.address), store_settings)
            measured = run_with_metrics(broker, metrics_port)
            if proxy is None:
                await serve_until_stopped(
                    measured, started=lambda: _print_addresses(namesrv.address, broker.listen_and_advertised_address)
                )
                return
            async with measured, _proxy(namesrv.address, proxy, settings, broker.address) as proxied:
                proxy_text = f", proxy {proxied.address}"
                await serve_until_stopped(
                    nullcontext(),
                    lambda: _print_addresses(namesrv.address, broker.listen_and_advertised_address, proxy_text),
                )

    run(serve())
    return 0


def _check_proxy(settings: "BrokerConfig", proxy: str) -> None:
    """Refuse a proxy that cannot authenticate its callers. Raises OptionError."""
    check_installed()
    parse_address("--proxy", proxy)
    if settings.authentication_enabled and settings.broker_credentials is None:
        raise OptionError(
            "--proxy with authenticationEnabled=true needs innerClientAuthenticationCredentials: with them it asks the "
            "broker for users"
        )


def _proxy(namesrv: str, listen: str, settings: "BrokerConfig", broker: str) -> "Proxy":
    """Build a proxy that requires logins and TLS if the broker requires them. Raises OptionError."""
    from rmq_core.client.options import ClientOptions  # noqa: PLC0415 # gRPC need not be there
    from rmq_core.proxy.server import Proxy  # noqa: PLC0415
    from rmq_core.remoting.access.tls import TlsMode, read_tls_file  # noqa: PLC0415

    mode = settings.tls_server_mode.strip().lower()
    return Proxy(
        namesrv,
        listen,
        settings.broker_credentials if settings.authentication_enabled else None,
        ClientOptions(tls=settings.tls.client()),
        authorizes=settings.authorization_enabled,
        tls=None if mode == TlsMode.DISABLED else read_tls_file(settings.tls_config_file),
        accepts_plain=mode != TlsMode.ENFORCING,
        auth_brokers=[broker],
    )


def _print_addresses(namesrv: str, broker: str, more: str = "") -> None:
    typer.echo(f"name server {namesrv}, broker {broker}{more}")
    sys.stdout.flush()
