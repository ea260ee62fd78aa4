"""``rmq verify``: compares a store's files with each other, on this machine."""

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
    Report,
    StorePath,
    Work,
    Workers,
    sizes_of_store,
)


def verify(
    store: StorePath,
    findings: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the findings there, as a table in one file.")
    ] = None,
    findings_format: Annotated[str, typer.Option(metavar="FORMAT", help="json (lines) or parquet.")] = "json",
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page for a browser there.")] = None,
    consumequeue_file_bytes: ConsumeQueueFileBytes = None,
    consumequeue_ext_file_bytes: ConsumeQueueExtFileBytes = None,
    commitlog_file_bytes: CommitLogFileBytes = None,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    delay_levels: DelayLevels = None,
    report: Report = None,
    work: Work = None,
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Find what is wrong with a store: its log, its queues, its Index, its checkpoint and config.

    Nothing is written into the store, which a broker may have open. Exit codes: 0 sound, 1 findings, 2 could
    not run.
    """
    from rmq_core.cli import verifying  # noqa: PLC0415 # takes a second to load
    from rmq_formats.report.verify_outputs import VerifyOutputs  # noqa: PLC0415

    options = sizes_of_store(
        commitlog_file_bytes, consumequeue_file_bytes, consumequeue_ext_file_bytes, index_slots, index_entries,
        delay_levels,
    )  # fmt: skip
    outputs = VerifyOutputs(findings, findings_format, html, report)
    return verifying.run(store, options, outputs, work=work, workers=workers, as_json=as_json)
