"""``rmq convert``: makes a store of another layout out of a store, on this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from rmq_core.cli.arguments import AsOneJson, StorePath, Workers, with_store_sizes

if TYPE_CHECKING:
    from rmq_formats.verify.phases.plan import VerifyOptions


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
    from rmq_core.cli.convert import run as convert_run  # noqa: PLC0415 # takes a second to load

    return convert_run.run(store, to, out, sizes, workers=workers, as_json=as_json)
