"""``rmq repair``: puts a store right from what is sound in it, on this machine."""

from typing import Annotated

import typer

from rmq_core.cli.arguments import StorePath
from rmq_formats.errors import OptionError

_AS_IN_STORE = "default: as the store's files have it"


def repair(
    store: StorePath,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done; the default.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it.")] = False,
    commitlog_file_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeCommitLog; {_AS_IN_STORE}.")
    ] = None,
    consumequeue_file_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueue; {_AS_IN_STORE}.")
    ] = None,
    consumequeue_ext_file_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueueExt, 0 is none; {_AS_IN_STORE}.")
    ] = None,
    index_slots: Annotated[int | None, typer.Option(metavar="N", help=f"maxHashSlotNum; {_AS_IN_STORE}.")] = None,
    index_entries: Annotated[int | None, typer.Option(metavar="N", help=f"maxIndexNum; {_AS_IN_STORE}.")] = None,
    delay_levels: Annotated[
        str | None, typer.Option(metavar="LEVELS", help="messageDelayLevel; default: as the store's queues have it.")
    ] = None,
    work: Annotated[
        str | None, typer.Option(metavar="DIR", help="For intermediate files; default: the system's own place.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes; default: one a processor.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> int:
    """Put a store right: quarantine what is damaged in its log, make its queues, Index and checkpoint anew.

    What is overwritten or in the way is first copied or moved to STORE/quarantine. The broker must be stopped.
    Exit codes: 0 sound, 1 something is to be done or could not be repaired, 2 could not run.
    """
    if plan and apply:
        raise OptionError("--plan and --apply: give one of them")
    from rmq_core.cli import repairing  # noqa: PLC0415 # takes a second to load
    from rmq_formats.consumequeue import delay_levels_ms  # noqa: PLC0415
    from rmq_formats.offline.verify_plan import VerifyOptions  # noqa: PLC0415

    options = VerifyOptions(
        commitlog_file_bytes, consumequeue_file_bytes, consumequeue_ext_file_bytes, index_slots, index_entries,
        None if delay_levels is None else delay_levels_ms(delay_levels),
    )  # fmt: skip
    return repairing.run(store, options, apply=apply, work=work, workers=workers, as_json=as_json)
