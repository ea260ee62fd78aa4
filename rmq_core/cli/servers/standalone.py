"""``rmq standalone``: runs a name server and a broker in one process."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rmq_core.cli.servers.broker import MetricsPort
from rmq_core.cli.servers.logs import LogFormat, LogFormatOption, log_to_stderr
from rmq_core.cli.servers.serving import listen_flags, serve_until_stopped, tell_ignored
from rmq_formats.codecs.paths import config_dir


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
    metrics_port: MetricsPort = None,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Run a name server and a broker in one process. Stops on Ctrl-C or SIGTERM."""
    from rmq_core.broker.broker import Broker  # noqa: PLC0415
    from rmq_core.broker.config import load_config  # noqa: PLC0415 # --help does not need it
    from rmq_core.broker.metrics.http import with_metrics  # noqa: PLC0415
    from rmq_core.broker.tables.table_file import log  # noqa: PLC0415
    from rmq_core.namesrv.config import load_config as load_namesrv_config  # noqa: PLC0415
    from rmq_core.namesrv.server import NameServer  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    log_to_stderr(log_format)
    flags = listen_flags("--broker-listen", broker_listen)
    settings, store_settings, passed_over = load_config(str(store), config, flags)
    tell_ignored(log, config, passed_over)
    namesrv_flags = {
        **listen_flags("--listen", listen),
        "kv_config_path": f"{config_dir(store_settings.root)}/kvConfig.json",
        "order_message_enable": True,
        "tls_server_mode": settings.tls_server_mode,
        "tls_config_file": settings.tls_config_file,
        "tls_enable": settings.tls_enable,
    }
    namesrv_settings, _ = load_namesrv_config(flags=namesrv_flags)

    async def serve() -> None:
        async with NameServer(namesrv_settings) as namesrv:
            broker = Broker(replace(settings, namesrv_addr=namesrv.address), store_settings)
            measured = with_metrics(broker, metrics_port)
            await serve_until_stopped(measured, started=lambda: _tell(namesrv.address, broker.address))

    run(serve())
    return 0


def _tell(namesrv: str, broker: str) -> None:
    typer.echo(f"name server {namesrv}, broker {broker}")
    sys.stdout.flush()
