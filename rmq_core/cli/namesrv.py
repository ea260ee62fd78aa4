"""``rmq namesrv``: the name server."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from rmq_formats.errors import OptionError


def namesrv(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Listen there. [default: 0.0.0.0:9876]", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Settings: Java's namesrv.conf properties, or TOML."),
    ] = None,
) -> int:
    """Run a name server until Ctrl-C or SIGTERM.

    Settings come from the defaults, the file, RMQ_NAMESRV_* variables and the options, the later ones over
    the earlier ones.
    """
    from rmq_core.namesrv.config import load_config  # noqa: PLC0415 # --help does not need it
    from rmq_core.namesrv.server import log, serve_namesrv  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings, passed_over = load_config(config, _address(listen))
    if passed_over:
        log.info("%s: these keys mean nothing here: %s", config, ", ".join(passed_over))
    run(serve_namesrv(settings))
    return 0


def _address(listen: str | None) -> dict[str, object]:
    """The flag as settings."""
    if listen is None:
        return {}
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise OptionError(f"--listen: {listen!r} is no HOST:PORT")
    return {"bind_address": host.removeprefix("[").removesuffix("]"), "listen_port": int(port)}
