"""``rmq inspect``: what a store, or one file of it, holds."""

from typing import Annotated

import typer

from rmq_core.cli.arguments import AnyPath


def inspect(
    path: AnyPath,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Tell what a store or one segment holds.

    Counts, offsets, times, topics, sizes, and whether it is sound.

    The CommitLog is read whole, checksums included. Damage is listed, and the exit code is 1 then.
    """
    from rmq_core.cli import inspection_text  # noqa: PLC0415 # takes a second to load

    return inspection_text.run(path, as_json)
