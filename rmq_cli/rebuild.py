"""``rmq rebuild``: rebuilds ConsumeQueue and Index files from the CommitLog, on this machine."""

from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING

from rmq_cli.arguments import AsOneJson, Report, StorePaths, Workers, with_options, with_store_sizes
from rmq_offline.tasks.options import REBUILD_OPTIONS

if TYPE_CHECKING:
    from rmq_offline.verify.phases.plan import VerifyOptions


@with_store_sizes
@with_options(REBUILD_OPTIONS)
def rebuild(
    stores: StorePaths,
    *,
    arguments: Namespace,
    sizes: "VerifyOptions",
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
    from rmq_offline.rebuild.options import parse_rebuild_options  # noqa: PLC0415
    from rmq_offline.rebuild.publication import parse_publish_options  # noqa: PLC0415
    from rmq_offline.tasks.origin import parse_interrupted_run_policy  # noqa: PLC0415

    publishing, leftover = parse_publish_options(arguments), parse_interrupted_run_policy(arguments)
    return rebuild_run.run(
        stores,
        arguments.out,
        partial(parse_rebuild_options, arguments, sizes),
        publishing,
        workers=workers,
        report_file=report,
        as_json=as_json,
        leftover=leftover,
    )
