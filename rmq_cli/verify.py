"""``rmq verify``: checks that a store's files are sound and agree with each other, on this machine."""

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from rmq_cli.arguments import AsOneJson, Report, StorePaths, Workers, with_options, with_store_sizes
from rmq_offline.tasks.options import VERIFY_OPTIONS

if TYPE_CHECKING:
    from rmq_offline.verify.phases.plan import VerifyOptions


@with_store_sizes
@with_options(VERIFY_OPTIONS)
def verify(
    stores: StorePaths,
    *,
    arguments: Namespace,
    sizes: "VerifyOptions",
    report: Report = None,
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Check one or more stores: log, queues, Index, checkpoint and config of each must be sound and agree.

    Nothing is written into a store, and a broker may have it open. Exit codes: 0 sound, 1 findings, 2 could
    not run.
    """
    from rmq_cli import verify_run  # noqa: PLC0415 # takes a second to load
    from rmq_offline.verify.html.outputs import VerifyOutputs  # noqa: PLC0415

    sizes = replace(sizes, tier=arguments.tier)
    outputs = VerifyOutputs(arguments.findings, arguments.findings_format, arguments.html, report)
    return verify_run.run(stores, sizes, outputs, work=arguments.work, workers=workers, as_json=as_json)
