"""How ``rmq``'s commands run: paths that begin with ``~``, errors with paths, help by default, and Ctrl-C."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from rmq_cli import output
from rmq_offline.tasks.options import expand_home

_PATHS: Final = frozenset({"DIR", "FILE", "[FILE]", "PATH", "STORE", "STORE..."})  # metavars of paths


class RmqCommand(TyperCommand):
    """A command whose paths may begin with ``~``, and which names its path where an OSError has none."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        for parameter in self.params:
            if parameter.metavar in _PATHS:
                ctx.params[parameter.name] = expand_home(ctx.params.get(parameter.name))
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.filename is None:
                error.strerror = error.strerror or str(error)  # pyarrow's errors of an object store have a text only
                path = ctx.params.get("path") or ctx.params.get("store")
                if path is not None:
                    error.filename = path
            raise


class CommandGroup(TyperGroup):
    """Command group that prints its help and ends with 0 if the arguments name no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, or print the help."""
        if not args and not ctx.resilient_parsing:
            with output.naming_stdout():
                print(ctx.get_help(), flush=True)  # noqa: T201 # as click's own does
            ctx.exit()
        return super().parse_args(ctx, args)


@contextmanager
def interruptible_workers() -> Iterator[None]:
    """Make Ctrl-C end worker processes at once and silently, within this context.

    A terminal sends SIGINT to all of them, and each would print its own traceback; sent to the first only, it
    would wait for the tasks of the rest to end. Tasks write beside and rename, so that they may die.
    """
    import multiprocessing  # noqa: PLC0415 # --help does not need it

    leader = os.getpid()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() != leader:  # a forked worker, which has inherited this
            os._exit(output.EXIT_INTERRUPTED)
        for child in multiprocessing.active_children():
            child.kill()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
