"""``rmq dump``: records, units and entries, one after the other."""

from typing import Annotated

import typer

from rmq_core.cli.arguments import AnyPath


def dump(
    path: AnyPath,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    from_offset: Annotated[
        int,
        typer.Option(
            "--from",
            min=0,
            metavar="OFFSET",
            help="Begin there: a physical offset, in mid-record too; in a ConsumeQueue a queue offset; "
            "in an IndexFile an entry's number.",
        ),
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after N.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="Only that topic's.")] = None,
    no_body: Annotated[bool, typer.Option("--no-body", help="Leave the bodies out.")] = False,
) -> int:
    """Print records, units or entries one by one.

    The records of a CommitLog (a store means its CommitLog), the units of a ConsumeQueue, the entries of an
    IndexFile; a checkpoint and config files whole.

    What is damaged is told on stderr, a line for each stretch, and the rest is
    printed; the exit code is 1 then.
    """
    from rmq_core.cli import dumping  # noqa: PLC0415 # takes a second to load

    return dumping.run(path, dumping.Wanted(as_json, from_offset, limit, topic, not no_body))
