"""``rmq namesrv``: runs a name server."""

from pathlib import Path
from typing import Annotated

import typer

from rmq_cli.servers.serving import (
    LogFormat,
    LogFormatOption,
    listen_flags,
    log_ignored_keys,
    log_to_stderr,
    serve_until_stopped,
)


def namesrv(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Listen there. [default: 127.0.0.1:9876]", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Settings: Java's namesrv.conf properties, or TOML."),
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Run a name server until Ctrl-C or SIGTERM.

    Settings come from the defaults, the file, RMQ_NAMESRV_* variables and the options, the later ones over
    the earlier ones.
    """
    from rmq_core.namesrv.config import load_config  # noqa: PLC0415 # --help does not need it
    from rmq_core.namesrv.server import NameServer, log  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    log_to_stderr(log_format)
    settings, passed_over = load_config(config, listen_flags("--listen", listen))
    log_ignored_keys(log, config, passed_over)
    run(serve_until_stopped(NameServer(settings)))
    return 0
