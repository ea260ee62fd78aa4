"""``rmq export``: exports messages to tables on this machine, without Spark if no option needs Spark."""

import json
import shlex
import sys
from pathlib import Path
from typing import Final

import typer

from rmq_cli import output, packaged
from rmq_formats.errors import OptionError

_PROGRAM: Final = "rmq export"


def export(ctx: typer.Context) -> int:
    """Export messages of a store or a cluster to Delta or Iceberg tables, each once; without Spark where possible."""
    from rmq_cli.commands import interruptible_workers  # noqa: PLC0415
    from rmq_cli.export_arguments import check_source, export_parser, with_store_option  # noqa: PLC0415 # slow to load
    from rmq_lakehouse.local import command  # noqa: PLC0415
    from rmq_lakehouse.local.raw import LocalRunner  # noqa: PLC0415
    from rmq_lakehouse.local.table_log import NeedsSparkError  # noqa: PLC0415
    from rmq_offline.job_arguments import check_report  # noqa: PLC0415
    from rmq_offline.tasks.log_format import log_on_stderr  # noqa: PLC0415

    words = with_store_option(_PROGRAM, ctx.args)
    arguments = export_parser(_PROGRAM).parse_args(words)
    check_source(arguments)
    check_report(arguments.report, arguments.store)
    try:
        options = command.check(arguments)
    except NeedsSparkError as error:
        if not packaged.has_spark():
            raise OptionError(error.with_command(_job_command(words))) from error
        sys.stderr.write(f"{_PROGRAM}: {error}: it starts Spark\n")
        packaged.run_job_here("export_delta", _PROGRAM, words)
    try:
        with interruptible_workers(), log_on_stderr(_PROGRAM):
            report, code = command.export(options, LocalRunner())
    except NeedsSparkError as error:
        raise OptionError(error.with_command(_job_command(words))) from error
    line = f"{json.dumps(report)}\n".encode()  # as the job prints it
    if arguments.report:
        Path(arguments.report).write_bytes(line)
    with output.Lines() as lines:
        lines.write(line)
    return code


def _job_command(words: list[str]) -> str:
    """Return the command that starts the job with these arguments, in any directory."""
    return shlex.join([sys.executable, *packaged.job_words("export_delta"), *words])
