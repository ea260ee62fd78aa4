"""``rmq inspect``: summarizes a store, or one file of it."""

from typing import Annotated

import typer

from rmq_cli.arguments import AnyPath, BrokerConfFile, apply_broker_conf


def inspect(
    path: AnyPath,
    config: BrokerConfFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    unqueued: Annotated[
        bool, typer.Option("--unqueued", help="Only the messages of a store that no queue has, by topic and reason.")
    ] = False,
) -> int:
    """Summarize a store or one of its files.

    Prints counts, offsets, times, topics, sizes, and whether it is sound.

    The CommitLog is read whole, checksums included. Damage is listed, and the exit code is 1 then.
    """
    from rmq_cli.inspect import run  # noqa: PLC0415 # takes a second to load

    apply_broker_conf(config, [path])
    return run.run_unqueued(path, as_json) if unqueued else run.run(path, as_json)
