"""``rmq dump``: prints records, ConsumeQueue units or Index entries one by one."""

from typing import Annotated

import typer

from rmq_cli.arguments import AnyPath, BrokerConfFile, apply_broker_conf


def dump(
    path: AnyPath,
    config: BrokerConfFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    from_offset: Annotated[
        int,
        typer.Option(
            "--from",
            min=0,
            metavar="OFFSET",
            help="Start there: a physical offset, in mid-record too; in a ConsumeQueue a queue offset; "
            "in an IndexFile an entry's number; in a DLedger CommitLog's index an entry's index.",
        ),
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after N rows.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="Only rows of this topic.")] = None,
    no_body: Annotated[bool, typer.Option("--no-body", help="Leave the bodies out.")] = False,
    unqueued: Annotated[
        bool, typer.Option("--unqueued", help="Of a store: only messages that no queue has, each with the reason.")
    ] = False,
) -> int:
    """Print records, ConsumeQueue units or Index entries one by one.

    The records of a CommitLog (a store means its CommitLog), the units of a ConsumeQueue, in RocksDB too, the entries
    of an IndexFile, the units of a DLedger CommitLog's index; a checkpoint and config files whole.

    Damage is reported on stderr, a line for each range, and the rest is
    printed; the exit code is 1 then.
    """
    from rmq_cli.dump import run  # noqa: PLC0415 # takes a second to load

    apply_broker_conf(config, [path])
    return run.run(path, run.DumpOptions(as_json, from_offset, limit, topic, not no_body, unqueued))
