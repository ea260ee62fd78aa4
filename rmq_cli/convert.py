"""``rmq convert``: makes a store of another layout out of a store, on this machine."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmq_cli import output
from rmq_cli.arguments import AsOneJson, StorePath, Workers, with_store_sizes

if TYPE_CHECKING:
    from rmq_offline.convert.job import ConvertReport
    from rmq_offline.verify.phases.plan import VerifyOptions

LISTED: Final = 40  # findings: --json has all


@with_store_sizes
def convert(
    store: StorePath,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="LAYOUT", help="The new layout: classic or rocksdb.", show_default=False)
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="The new store's directory; new, or empty.", show_default=False)
    ],
    sizes: "VerifyOptions",
    workers: Workers = None,
    as_json: AsOneJson = False,
) -> int:
    """Make a store of another layout. The old store is only read; its broker must be stopped.

    classic: CommitLog, queues and config are files, as of a broker with storeType=default and without DLedger.
    rocksdb: the CommitLog is classic, queues and config are in RocksDB, as of a broker with storeType=defaultRocksDB.
    """
    from rmq_cli.commands import interruptible_workers  # noqa: PLC0415 # slow to load, as are the next ones
    from rmq_offline.convert.job import convert_store  # noqa: PLC0415
    from rmq_offline.tasks.runner import ProcessRunner  # noqa: PLC0415

    with interruptible_workers():
        report = convert_store(store, to, out, sizes, ProcessRunner(workers))
    if as_json:
        output.print_json(report.to_dict())
    else:
        _print(report)
    return output.EXIT_FINDINGS if report.done.findings else output.EXIT_CLEAN


def _print(report: "ConvertReport") -> None:
    from rich.text import Text  # noqa: PLC0415

    done, console = report.done, output.console()
    console.print(
        output.facts(
            ("store", output.printable(report.store)),
            ("new store", f"{output.printable(report.out)}, {report.to}"),
            ("written", f"{output.counted(done.messages, 'message')} in {output.bytes_text(done.bytes)}"),
            ("seconds", f"{report.seconds:.2f}"),
            *(("changed" if not number else "", Text(change)) for number, change in enumerate(done.changes)),
        )
    )
    if done.findings:
        table = output.table("left out", ">offset", "what")
        for finding in done.findings[:LISTED]:
            offset = "-" if finding.physical_offset is None else str(finding.physical_offset)
            table.add_row(Text(finding.kind.code, style="red"), offset, output.printable(finding.detail))
        console.print()
        console.print(table)
        output.print_unlisted(console, len(done.findings), LISTED, "--json lists them")
