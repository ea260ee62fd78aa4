"""``rmq checkpoint``: makes a checkpoint that makes the next start of a broker short."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.arguments import AsOneJson, StorePath, Workers, with_store_sizes

if TYPE_CHECKING:
    from rmq_offline.verify.phases.plan import VerifyOptions


@with_store_sizes
def checkpoint(
    store: StorePath,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Write it; without --apply the plan is printed.")] = False,
    sizes: "VerifyOptions",
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Make a checkpoint that makes a killed broker's next start short, if the store's files prove it.

    The store is verified: log, queues and Index must agree up to the log's end. The broker must be stopped.
    Exit codes: 0 written, 1 a plan, or findings that forbid it, 2 could not run.
    """
    from rmq_cli import output  # noqa: PLC0415 # slow to load, as are the next ones
    from rmq_cli.commands import interruptible_workers  # noqa: PLC0415
    from rmq_offline.diagnosis.checkpoint import make_checkpoint  # noqa: PLC0415
    from rmq_offline.tasks.runner import ProcessRunner  # noqa: PLC0415

    with interruptible_workers():
        report = make_checkpoint(store, sizes, ProcessRunner(workers), apply=apply)
    if as_json:
        against = [finding.to_dict() for finding in report.against]
        before, after = (None if start is None else asdict(start) for start in (report.before, report.after))
        output.print_json({
            "job": "checkpoint", "store": store, "checkpoint": report.checkpoint, "against": against,
            "before": before, "after": after, "applied": report.is_applied, "quarantine": report.quarantine,
        })  # fmt: skip
    else:
        console = output.console()
        starts = [("a start reads", report.before), ("with the new one", report.after)]
        console.print(
            output.facts(
                ("store", output.printable(store)),
                ("new checkpoint", f"up to {output.time_text(report.checkpoint.physic_msg_timestamp_ms)}"),
                *(
                    (
                        name,
                        "-"
                        if start is None
                        else f"{output.counted(start.files, 'file')}, about {start.seconds:g} s: {start.reason}",
                    )
                    for name, start in starts
                ),
            )
        )
        if report.against:
            console.print(f"not written: {output.counted(len(report.against), 'finding')} of log, queues or Index")
            output.print_next(console, "rmq verify", store)
        elif report.is_applied:
            kept = "" if report.quarantine is None else f"; the former one is {output.printable(report.quarantine)}"
            console.print(f"written{kept}", soft_wrap=True)
        else:
            output.print_next(console, "rmq checkpoint", store, "--apply")
    return output.EXIT_CLEAN if report.is_applied else output.EXIT_FINDINGS
