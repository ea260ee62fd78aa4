"""``rmq query``: finds messages in a store at rest, by its ConsumeQueue and Index files."""

from typing import Annotated

import typer

from rmq_cli.arguments import BrokerConfFile, StorePath, apply_broker_conf, parse_time
from rmq_formats.errors import OptionError


def query(
    store: StorePath,
    config: BrokerConfFile = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="One of its KEYS; with --topic.")] = None,
    uniq_key: Annotated[
        str | None, typer.Option(metavar="U", help="Its UNIQ_KEY, the id that its send returned; with --topic.")
    ] = None,
    msg_id: Annotated[str | None, typer.Option(metavar="ID", help="Its offset message id.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="The topic.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="Q", help="The queue id; with --topic.")] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Its queue offset; with --topic and --queue.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="ISO",
            help="With --topic: of each queue the first message stored then or later. UTC if without a zone; or ms.",
        ),
    ] = None,
    include: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="live: what consumers get, the default with --offset and --time; log: former messages too, the "
            "default for keys and message ids; unqueued: these alone.",
        ),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The broker's tieredStoreFilePath: read expired messages there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as rmq dump prints it.")] = False,
) -> int:
    """Find messages in a store by key, id, queue offset or time.

    Uses Index and ConsumeQueue where they can be relied on; else scans the log, and a line on stderr
    says why. Nothing found: exit code 1.
    """
    choices = {"--key": key, "--uniq-key": uniq_key, "--msg-id": msg_id, "--offset": offset, "--time": time}
    options = [name for name, value in choices.items() if value is not None]
    if len(options) != 1:
        raise OptionError(f"give one of {', '.join(choices)}; given: {', '.join(options) or 'none'}")
    if msg_id is None and topic is None:
        raise OptionError(f"{options[0]}: give --topic too")
    if offset is not None and queue is None:
        raise OptionError("--offset: give --queue too")
    if msg_id is not None and tier is not None:
        raise OptionError("--msg-id: names a place in the CommitLog; leave --tier out")
    if msg_id is not None and not (topic is None and queue is None):
        raise OptionError("--msg-id: names one message; leave --topic and --queue out")
    time_ms = None if time is None else parse_time(time)

    from rmq_cli import query_run  # noqa: PLC0415 # takes a second to load

    apply_broker_conf(config, [store])
    conditions = {
        "key": key, "uniq_key": uniq_key, "msg_id": msg_id, "topic": topic, "queue_id": queue, "offset": offset,
        "time": time_ms, "include": include,
    }  # fmt: skip
    return query_run.run(store, tier, conditions, as_json=as_json)
