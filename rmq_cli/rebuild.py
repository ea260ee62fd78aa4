"""``rmq rebuild``: rebuilds ConsumeQueue and Index files from the CommitLog, on this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.arguments import (
    Accept,
    AsOneJson,
    PlanWork,
    Report,
    Resume,
    StartAnew,
    StorePaths,
    Workers,
    with_store_sizes,
)

if TYPE_CHECKING:
    from rmq_offline.rebuild.options import RebuildOptions
    from rmq_offline.verify.phases.plan import VerifyOptions


@with_store_sizes
def rebuild(
    stores: StorePaths,
    *,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write to this directory or URI; of several stores, by broker.")
    ] = None,
    what: Annotated[str, typer.Option(metavar="WHAT", help="What to rebuild: all, consumequeue or index.")] = "all",
    sizes: "VerifyOptions",
    topics_json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of --only-live-topics; default: the store's config/topics.json.")
    ] = None,
    only_live_topics: Annotated[
        bool, typer.Option("--only-live-topics", help="Leave out topics that topics.json lacks: the deleted ones.")
    ] = False,
    from_log_alone: Annotated[
        bool, typer.Option("--from-log-alone", help="Make queues from the log alone, and ignore the store's queues.")
    ] = False,
    resume: Resume = False,
    start_anew: StartAnew = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the changes for consumers; write nothing.")] = False,
    accept: Accept = None,
    work: PlanWork = None,
    report: Report = None,
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Rebuild ConsumeQueue and Index files from the CommitLog and the store's queues.

    The files are byte for byte those of a broker, and replace the old ones atomically: killed at any
    instant, this leaves the old state or the new one. The old ones stay in STORE/quarantine. What takes a message
    from a consumer, or lowers the end of a queue, needs --accept. A store that a broker has open is refused.
    """
    from rmq_cli import rebuild_run  # noqa: PLC0415 # takes a second to load
    from rmq_offline.rebuild.options import live_topics_path, options_from_arguments  # noqa: PLC0415
    from rmq_offline.rebuild.publication import publishing_from_arguments  # noqa: PLC0415
    from rmq_offline.tasks.origin import parse_leftover_policy  # noqa: PLC0415

    leftover = parse_leftover_policy(resume=resume, start_anew=start_anew)

    def options_of(store: str) -> "RebuildOptions":
        live_topics_of = live_topics_path(only_live_topics, topics_json, store)
        return options_from_arguments(what, sizes, store, live_topics_of, from_log_alone=from_log_alone)

    publishing = publishing_from_arguments(plan=plan, accept=accept, work=work, out=out)
    return rebuild_run.run(
        stores, out, options_of, publishing, workers=workers, report_file=report, as_json=as_json, leftover=leftover
    )
