"""``rmq broker``: runs a broker."""

from pathlib import Path
from typing import Annotated

import typer

from rmq_cli.servers.serving import (
    LogFormat,
    LogFormatOption,
    listen_flags,
    log_ignored_keys,
    log_to_stderr,
    parse_address,
    serve_until_stopped,
)

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, metavar="PORT", help="Metrics for Prometheus on http://127.0.0.1:PORT/metrics; 0: a free one."
    ),
]


def broker(
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The store. [default: storePathRootDir of the file]", show_default=False),
    ] = None,
    namesrv: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Name servers to register with, separated by semicolons.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Listen there, and two ports below. [default: 127.0.0.1:10911]",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Settings: Java's broker.conf properties, or TOML."),
    ] = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    Settings come from the defaults, the file, RMQ_BROKER_* variables and the options, the later ones over
    the earlier ones.
    """
    from rmq_core.broker.broker import Broker  # noqa: PLC0415
    from rmq_core.broker.config import load_config  # noqa: PLC0415 # --help does not need it
    from rmq_core.broker.metrics.http import run_with_metrics  # noqa: PLC0415
    from rmq_core.broker.tables.table_file import log  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    log_to_stderr(log_format)
    for address in (namesrv or "").split(";") if namesrv else []:
        parse_address("--namesrv", address)
    flags = {"namesrv_addr": namesrv, **listen_flags("--listen", listen)}
    settings, store_settings, passed_over = load_config(str(store) if store else None, config, flags)
    log_ignored_keys(log, config, passed_over)
    run(serve_until_stopped(run_with_metrics(Broker(settings, store_settings), metrics_port)))
    return 0
