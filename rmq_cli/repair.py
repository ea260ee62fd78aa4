"""``rmq repair``: repairs a damaged store from its sound records, on this machine."""

from argparse import Namespace
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.arguments import AsOneJson, StorePath, Work, Workers, with_options, with_store_sizes
from rmq_formats.errors import OptionError
from rmq_offline.tasks.options import ACCEPT, RESUME, START_ANEW

if TYPE_CHECKING:
    from rmq_offline.verify.phases.plan import VerifyOptions


@with_store_sizes
@with_options([RESUME, START_ANEW, ACCEPT])
def repair(
    store: StorePath,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done; the default.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Carry out the plan.")] = False,
    what: Annotated[
        str,
        typer.Option(metavar="WHAT", help="all, or config: topics.json and subscriptionGroup.json."),
    ] = "all",
    sizes: "VerifyOptions",
    arguments: Namespace,
    work: Work = None,
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Repair a damaged store. Quarantines damaged bytes of its log; rebuilds its queues, Index and checkpoint.

    Overwritten bytes, files in the way, and the queues and IndexFiles that are replaced go to STORE/quarantine. What
    takes a message from a consumer, or lowers the end of a queue, needs --accept. The broker must be stopped.
    Exit codes: 0 sound, 1 something is to be done or could not be repaired, 2 could not run.
    """
    if plan and apply:
        raise OptionError("--plan and --apply: give one of them")
    if what not in {"all", "config"}:
        raise OptionError(f"--what {what}: give all or config")
    from rmq_cli import repair_run  # noqa: PLC0415 # takes a second to load
    from rmq_offline.tasks.origin import parse_interrupted_run_policy  # noqa: PLC0415

    if what == "config":
        return repair_run.run_config(store, apply=apply, as_json=as_json)
    leftover = parse_interrupted_run_policy(arguments)
    return repair_run.run(
        store,
        sizes,
        apply=apply,
        accept=arguments.accept or (),
        work=work,
        workers=workers,
        as_json=as_json,
        leftover=leftover,
    )
