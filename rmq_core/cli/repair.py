"""``rmq repair``: puts a store right from what is sound in it, on this machine."""

from typing import Annotated

import typer

from rmq_core.cli.arguments import (
    AsOneJson,
    CommitLogFileBytes,
    ConsumeQueueExtFileBytes,
    ConsumeQueueFileBytes,
    DelayLevels,
    IndexEntries,
    IndexSlots,
    StorePath,
    Work,
    Workers,
    sizes_of_store,
)
from rmq_formats.errors import OptionError


def repair(
    store: StorePath,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done; the default.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it.")] = False,
    commitlog_file_bytes: CommitLogFileBytes = None,
    consumequeue_file_bytes: ConsumeQueueFileBytes = None,
    consumequeue_ext_file_bytes: ConsumeQueueExtFileBytes = None,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    delay_levels: DelayLevels = None,
    work: Work = None,
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Put a store right: quarantine what is damaged in its log, make its queues, Index and checkpoint anew.

    What is overwritten or in the way is first copied or moved to STORE/quarantine. The broker must be stopped.
    Exit codes: 0 sound, 1 something is to be done or could not be repaired, 2 could not run.
    """
    if plan and apply:
        raise OptionError("--plan and --apply: give one of them")
    from rmq_core.cli import repairing  # noqa: PLC0415 # takes a second to load

    options = sizes_of_store(
        commitlog_file_bytes, consumequeue_file_bytes, consumequeue_ext_file_bytes, index_slots, index_entries,
        delay_levels,
    )  # fmt: skip
    return repairing.run(store, options, apply=apply, work=work, workers=workers, as_json=as_json)
