"""Arguments that commands have in common."""

from typing import Annotated

import typer

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
