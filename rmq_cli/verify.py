"""``rmq verify``: checks that a store's files are sound and agree with each other, on this machine."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.arguments import AsOneJson, Report, StorePaths, Work, Workers, with_store_sizes

if TYPE_CHECKING:
    from rmq_offline.verify.phases.plan import VerifyOptions


@with_store_sizes
def verify(
    stores: StorePaths,
    *,
    findings: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the findings to this file, as a table.")
    ] = None,
    findings_format: Annotated[str, typer.Option(metavar="FORMAT", help="json (lines) or parquet.")] = "json",
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write an HTML page to this file.")] = None,
    tier: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The broker's tieredStoreFilePath, a path or URI: verify its files too."),
    ] = None,
    sizes: "VerifyOptions",
    report: Report = None,
    work: Work = None,
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Check a store, or several. Its log, queues, Index, checkpoint and config must be sound and agree.

    Nothing is written into the store, which a broker may have open. Exit codes: 0 sound, 1 findings, 2 could
    not run.
    """
    from rmq_cli import verify_run  # noqa: PLC0415 # takes a second to load
    from rmq_offline.verify.html.outputs import VerifyOutputs  # noqa: PLC0415

    sizes = replace(sizes, tier=tier)
    outputs = VerifyOutputs(findings, findings_format, html, report)
    return verify_run.run(stores, sizes, outputs, work=work, workers=workers, as_json=as_json)
