"""``rmq export``, ``rmq import`` and ``rmq replay``: Spark jobs on this machine, by the jobs' own functions.

A job parses its own arguments, so that both ways to start it have the same options and messages.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand

from rmq_core.cli import packaged
from rmq_formats.errors import OptionError

JOBS: Final = {
    "export": ("export_delta", "Export messages to Delta or Iceberg, each once (Spark)."),
    "import": ("import_delta", "Write a store from the messages of a Delta table (Spark)."),
    "replay": ("replay", "Send messages of a store again, to a cluster or a store (Spark)."),
}


class JobCommand(TyperCommand):
    """A command whose arguments are not parsed here, but by its job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass all arguments through to the job, ``--help`` too."""
        ctx.args = args
        return []


def job_command(name: str) -> Callable[[typer.Context], None]:
    """Make the function of a command in ``JOBS``; its docstring is the command's help."""
    job, summary = JOBS[name]

    def run(ctx: typer.Context) -> None:
        if not packaged.has_spark():
            raise OptionError(f"rmq {name} runs on Spark, which is not installed: pip install 'rmq-lake[spark]'")
        module = import_module(packaged.job_module(job))
        from rmq_formats.spark.job import run_job  # noqa: PLC0415 # pyspark takes a second to load

        parser = module.parser()
        parser.prog = f"rmq {name}"
        run_job(parser, module.main, check=module.check, needs_delta=module.needs_delta, arguments=ctx.args)

    run.__doc__ = summary
    return run
