"""``rmq generate``: writes a store of test messages in bulk, without a broker."""

import time
from dataclasses import asdict
from shlex import quote
from typing import Annotated

import typer

from rmq_cli import output
from rmq_formats.errors import OptionError

TOPIC = "TopicTest"


def generate(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store's directory; made if missing.", show_default=False)
    ],
    messages: Annotated[int, typer.Option(min=0, metavar="N", help="Number of messages.", show_default=False)],
    body_bytes: Annotated[int, typer.Option(min=1, metavar="S", help="Size of each body.", show_default=False)],
    topics: Annotated[str, typer.Option(metavar="T", help="Topic names, separated by commas, or their number.")] = "1",
    queues: Annotated[int, typer.Option(min=1, metavar="Q", help="Queues of each topic.")] = 4,
    keys: Annotated[bool, typer.Option("--keys", help="Give each message its own KEYS.")] = False,
    tags: Annotated[bool, typer.Option("--tags", help="Give messages TAGS, TagA to TagE.")] = False,
    seed: Annotated[int, typer.Option(metavar="K", help="Equal seeds give equal bytes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Write a store of test messages in bulk, without a broker.

    Writes at the speed of the disk. Only the CommitLog and config/topics.json: rmq rebuild, or a broker that opens the
    store, writes the rest.
    """
    from rmq_offline.generate import generate_store  # noqa: PLC0415 # takes a second to load

    begin = time.perf_counter()
    with output.progress("Writing", messages, in_bytes=False) as advance:
        report = generate_store(
            store,
            messages=messages,
            body_bytes=body_bytes,
            topics=topic_names(topics),
            queues=queues,
            keys=keys,
            tags=tags,
            seed=seed,
            on_progress=lambda done, _: advance(done),
        )
    seconds = time.perf_counter() - begin
    if as_json:
        rate = round(report.bytes / seconds)
        output.print_json({"store": store, **asdict(report), "seconds": round(seconds, 3), "bytes_per_second": rate})
        return
    size, rate_text = output.bytes_text(report.bytes), f"{report.bytes / seconds / 1e6:,.0f} MB/s"
    output.console().print(
        f"{output.counted(report.messages, 'message')}, {size}, {output.counted(report.files, 'file')} "
        f"in {seconds:.2f} s, {rate_text}: {store}",
        soft_wrap=True,
    )
    output.console().print(
        f"It has no queues and no Index yet: rmq rebuild {quote(store)}, or a broker that opens it, makes them",
        soft_wrap=True,
    )


def topic_names(text: str) -> list[str]:
    """Return the topic names that ``--topics`` stands for. Raises OptionError."""
    if not text.isdecimal():
        return [name.strip() for name in text.split(",")]
    count = int(text)
    if not 1 <= count <= 100_000:
        raise OptionError(f"--topics {text}: must be 1 to 100000, or names")
    return [TOPIC] if count == 1 else [f"{TOPIC}{number}" for number in range(count)]
