"""Files installed with the packages: jobs of ``rmq import`` and ``rmq replay``, notebooks of ``rmq notebooks``.

In a source tree these are folders beside the packages, in an installation they are in ``rmq_jobs``
(``tools/wheel.py``). A job parses its own arguments, so that both ways to start it have the same options and messages.
"""

import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand

from rmq_formats.errors import OptionError

_BESIDE: Final = Path(__file__).parents[1]
_INSTALLED: Final = _BESIDE / "rmq_jobs"
JOBS: Final = {
    "import": ("import_delta", "Write a store from a Delta or Iceberg table (Spark)."),
    "replay": ("replay", "Send messages of a store again, to a cluster or a store (Spark)."),
}


def folder(name: str) -> Path:
    """Return the folder ``conf`` or ``notebooks``."""
    return (_INSTALLED if _INSTALLED.is_dir() else _BESIDE) / name


def job_module(name: str) -> str:
    """Return the name of a job's module."""
    return f"{'rmq_jobs' if _INSTALLED.is_dir() else 'jobs'}.{name}"


def job_words(name: str) -> list[str]:
    """Return the words that start a job, to follow the interpreter."""
    return ["-m", job_module(name)] if _INSTALLED.is_dir() else [str(_BESIDE / "jobs" / f"{name}.py")]


def has_spark() -> bool:
    """Return whether pyspark is installed, without loading it."""
    return find_spec("pyspark") is not None


def notebooks(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where to put them; made if it is not there.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that differ, as those that you have run.")
    ] = False,
) -> int:
    """Copy the notebooks and their modules into a directory.

    Files of the same names that differ are not replaced: nothing is copied then, without --overwrite.
    """
    source, target = folder("notebooks"), Path(directory)
    files = sorted(path for path in source.iterdir() if path.suffix in {".ipynb", ".py"})
    changed = [path.name for path in files if _differs(path, target / path.name)]
    if changed and not overwrite:
        names = ", ".join(changed)
        raise OptionError(f"{directory}: has {names} already, with other content; --overwrite replaces them")
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, target / path.name)
        typer.echo(str(target / path.name))
    return 0


def _differs(path: Path, other: Path) -> bool:
    return other.exists() and (not other.is_file() or other.read_bytes() != path.read_bytes())


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
        if not has_spark():
            raise OptionError(f"rmq {name} runs on Spark, which is not installed: pip install 'rmq-lake[spark]'")
        run_job_here(job, f"rmq {name}", ctx.args)

    run.__doc__ = summary
    return run


def run_job_here(job: str, program: str, words: list[str]) -> NoReturn:
    """Run a job in this process with a session of its own, and exit with the job's code."""
    module = import_module(job_module(job))
    from rmq_offline.spark.job import run_job  # noqa: PLC0415 # pyspark takes a second to load

    parser = module.parser()
    parser.prog = program
    run_job(parser, module.main, check=module.check, needs_delta=module.needs_delta, arguments=words)
