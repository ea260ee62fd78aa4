"""Arguments and options that several commands share."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer

_AS_IN_STORE: Final = "default: as the store's files have it"

StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="The store's root directory, or a URI.", show_default=False)
]
StorePaths = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE...",
        help="The store's root directory, or a URI. Several: more of them, a quoted pattern as '/data/*/store', or a "
        "TOML file that names them.",
        show_default=False,
    ),
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

ConsumeQueueExtFileBytes = Annotated[
    int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueueExt, 0 is none; {_AS_IN_STORE}.")
]
BatchConsumeQueueFileBytes = Annotated[
    int | None, typer.Option(metavar="BYTES", help=f"mapperFileSizeBatchConsumeQueue; {_AS_IN_STORE}.")
]
IndexTags = Annotated[
    str | None,
    typer.Option(metavar="auto|yes|no", help="Whether TAGS are indexed, as since 5.4; auto asks the store."),
]
# Sizes that no file of a store holds; inferred from its files where not given.
_SIZES: Final[dict[str, Any]] = {
    "commitlog_file_bytes": Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeCommitLog; {_AS_IN_STORE}.")
    ],
    "consumequeue_file_bytes": Annotated[
        int | None, typer.Option(metavar="BYTES", help=f"mappedFileSizeConsumeQueue; {_AS_IN_STORE}.")
    ],
    "consumequeue_ext_file_bytes": ConsumeQueueExtFileBytes,
    "batchconsumequeue_file_bytes": BatchConsumeQueueFileBytes,
    "index_slots": Annotated[int | None, typer.Option(metavar="N", help=f"maxHashSlotNum; {_AS_IN_STORE}.")],
    "index_entries": Annotated[int | None, typer.Option(metavar="N", help=f"maxIndexNum; {_AS_IN_STORE}.")],
    "delay_levels": Annotated[
        str | None, typer.Option(metavar="LEVELS", help="messageDelayLevel; default: as the store's queues have it.")
    ],
    "index_tags": IndexTags,
}

Report = Annotated[str | None, typer.Option(metavar="FILE", help="Write the JSON report there too.")]
Work = Annotated[
    str | None, typer.Option(metavar="DIR", help="For intermediate files; default: the temporary directory.")
]
PlanWork = Annotated[
    str | None,
    typer.Option("--work", metavar="DIR", help="Of --plan: for its files; default: a temporary one."),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A topic, or TOPIC/QUEUE, whose messages may leave or whose end may be lowered; all is any. Repeatable.",
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes; default: one for each processor.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Complete what an interrupted run has left in the store, whoever left it.")
]
StartAnew = Annotated[
    bool, typer.Option("--start-anew", help="Set aside what an interrupted run has left in the store.")
]
AsOneJson = Annotated[bool, typer.Option("--json", help="The report as one JSON object.")]


def several(stores: list[str]) -> list[str] | None:
    """Return the paths of several stores, absolute or URIs; None where one store is given."""
    from rmq_formats.read.stores import names_several  # noqa: PLC0415 # --help does not need it

    if len(stores) == 1 and not names_several(stores[0]):
        return None
    return [store if "://" in store else str(Path(store).absolute()) for store in stores]


def with_store_sizes(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a store's sizes, in place of its argument ``sizes``, which is made of them.

    The command that is returned raises OptionError where the delay levels are none.
    """

    def run(**given: Any) -> int:
        from rmq_formats.codecs.consumequeue import delay_levels_ms  # noqa: PLC0415 # --help does not need it
        from rmq_formats.codecs.index import AUTO, parse_index_tags  # noqa: PLC0415
        from rmq_formats.verify.phases.plan import VerifyOptions  # noqa: PLC0415

        sizes = {name: given.pop(name) for name in _SIZES}
        levels, index_tags = sizes.pop("delay_levels"), sizes.pop("index_tags")
        options = VerifyOptions(
            **sizes, delay_levels_ms=None if levels is None else delay_levels_ms(levels),
            tags_from=parse_index_tags(index_tags or AUTO),
        )  # fmt: skip
        return command(sizes=options, **given)

    parameters: list[Parameter] = []
    for one in signature(command).parameters.values():
        own = [one.replace(name=name, default=None, annotation=option) for name, option in _SIZES.items()]
        parameters += own if one.name == "sizes" else [one]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = command.__doc__
    return run
