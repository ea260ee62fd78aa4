"""``rmq verify``: compares a store's files with each other, on this machine."""

from typing import Annotated

import typer

from rmq_core.cli.arguments import StorePath

_AS_IN_STORE = "default: as the store's files have it"


def verify(
    store: StorePath,
    findings: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the findings there, as a table in one file.")
    ] = None,
    findings_format: Annotated[str, typer.Option(metavar="FORMAT", help="json (lines) or parquet.")] = "json",
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page for a browser there.")] = None,
    consumequeue_file_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueue; {_AS_IN_STORE}.")
    ] = None,
    consumequeue_ext_file_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueueExt, 0 is none; {_AS_IN_STORE}.")
    ] = None,
    commitlog_file_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeCommitLog; {_AS_IN_STORE}.")
    ] = None,
    index_slots: Annotated[int | None, typer.Option(metavar="N", help=f"maxHashSlotNum; {_AS_IN_STORE}.")] = None,
    index_entries: Annotated[int | None, typer.Option(metavar="N", help=f"maxIndexNum; {_AS_IN_STORE}.")] = None,
    delay_levels: Annotated[
        str | None, typer.Option(metavar="LEVELS", help="messageDelayLevel; default: as the store's queues have it.")
    ] = None,
    report: Annotated[str | None, typer.Option(metavar="FILE", help="Write the JSON report there too.")] = None,
    work: Annotated[
        str | None, typer.Option(metavar="DIR", help="For intermediate files; default: the system's own place.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes; default: one a processor.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> int:
    """Find what is wrong with a store: its log, its queues, its Index, its checkpoint and config.

    Nothing is written into the store, which a broker may have open. Exit codes: 0 sound, 1 findings, 2 could
    not run.
    """
    from rmq_core.cli import verifying  # noqa: PLC0415 # takes a second to load
    from rmq_formats.consumequeue import delay_levels_ms  # noqa: PLC0415
    from rmq_formats.offline.verify_plan import VerifyOptions  # noqa: PLC0415
    from rmq_formats.report.verify_outputs import VerifyOutputs  # noqa: PLC0415

    options = VerifyOptions(
        commitlog_file_bytes, consumequeue_file_bytes, consumequeue_ext_file_bytes, index_slots, index_entries,
        None if delay_levels is None else delay_levels_ms(delay_levels),
    )  # fmt: skip
    outputs = VerifyOutputs(findings, findings_format, html, report)
    return verifying.run(store, options, outputs, work=work, workers=workers, as_json=as_json)
