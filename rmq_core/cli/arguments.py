"""Arguments that commands have in common."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from rmq_formats.offline.verify_plan import VerifyOptions

_AS_IN_STORE: Final = "default: as the store's files have it"

StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="The store's root directory, or a URI.", show_default=False)
]
AnyPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A store, its commitlog, consumequeue or index directory, one queue's directory, or one file. "
        "Local, or a URI as s3://bucket/store.",
        show_default=False,
    ),
]

# Sizes that no file of a store says, where what its files look like is good enough.
CommitLogFileBytes = Annotated[
    int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeCommitLog; {_AS_IN_STORE}.")
]
ConsumeQueueFileBytes = Annotated[
    int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueue; {_AS_IN_STORE}.")
]
ConsumeQueueExtFileBytes = Annotated[
    int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueueExt, 0 is none; {_AS_IN_STORE}.")
]
IndexSlots = Annotated[int | None, typer.Option(metavar="N", help=f"maxHashSlotNum; {_AS_IN_STORE}.")]
IndexEntries = Annotated[int | None, typer.Option(metavar="N", help=f"maxIndexNum; {_AS_IN_STORE}.")]
DelayLevels = Annotated[
    str | None, typer.Option(metavar="LEVELS", help="messageDelayLevel; default: as the store's queues have it.")
]

Report = Annotated[str | None, typer.Option(metavar="FILE", help="Write the JSON report there too.")]
Work = Annotated[
    str | None, typer.Option(metavar="DIR", help="For intermediate files; default: the system's own place.")
]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes; default: one a processor.")]
AsOneJson = Annotated[bool, typer.Option("--json", help="The report as one JSON object.")]


def sizes_of_store(
    commitlog_file_bytes: int | None,
    consumequeue_file_bytes: int | None,
    consumequeue_ext_file_bytes: int | None,
    index_slots: int | None,
    index_entries: int | None,
    delay_levels: str | None,
) -> "VerifyOptions":
    """The options above, as verify and repair take them; None is as the store's files have it.

    Raises:
        OptionError: the delay levels are none.
    """
    from rmq_formats.consumequeue import delay_levels_ms  # noqa: PLC0415 # --help does not need it
    from rmq_formats.offline.verify_plan import VerifyOptions  # noqa: PLC0415

    return VerifyOptions(
        commitlog_file_bytes, consumequeue_file_bytes, consumequeue_ext_file_bytes, index_slots, index_entries,
        None if delay_levels is None else delay_levels_ms(delay_levels),
    )  # fmt: skip
