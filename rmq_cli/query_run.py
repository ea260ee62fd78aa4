"""The work of ``rmq query``: finds messages in a store, and prints each whole."""

from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from rmq_cli import output
from rmq_cli.dump import json_lines
from rmq_cli.output import bytes_text, printable, time_text
from rmq_formats.codecs.batch_consumequeue import inner_messages, is_inner_batch
from rmq_formats.codecs.compression import Compression, decompress
from rmq_formats.codecs.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_PREPARED,
    FLAG_TRANSACTION_ROLLBACK,
)
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import FormatError
from rmq_formats.read.plan import ReadPlan
from rmq_formats.read.query import AccessPath
from rmq_formats.store import Store

HEX_BYTES = 256  # of a body that is not text
_RULE_CELLS = 120  # a pipe is as wide as its longest line
_PREPARED = "prepared"
_TRANSACTIONS = {
    FLAG_TRANSACTION_PREPARED: _PREPARED,
    FLAG_TRANSACTION_COMMIT: "commit",
    FLAG_TRANSACTION_ROLLBACK: "rollback",
}


def run(store: str, tier: str | None, conditions: dict[str, Any], *, as_json: bool) -> int:
    """Print the messages of a query, with ``Store.query``'s conditions. Returns the exit code. Raises RmqError."""
    opened = Store(store, tier=tier)
    messages = opened.query(**conditions, on_plan=_warn_of_scan)
    if not messages:
        topic = conditions["topic"]
        is_topic = topic is None or topic in opened.topics()
        output.warn(f"{store}: no such message" if is_topic else f"{store}: no such topic: {topic}")
        return output.EXIT_FINDINGS
    if as_json:
        with output.Lines() as lines:
            for message in messages:
                lines.write(json_lines.message_line(message))
        return output.EXIT_CLEAN
    console = output.console()
    for message in messages:
        show(message, console)
    if len(messages) > 1:
        console.print(Text(output.counted(len(messages), "message"), style="dim"))
    return output.EXIT_CLEAN


def _warn_of_scan(plan: ReadPlan) -> None:
    if plan.access_path is AccessPath.SCAN:
        output.warn(f"scanning {bytes_text(plan.scanned_bytes)} of the log; {plan.reason}")


def show(message: StoredMessage, console: Console) -> None:
    """Print a message with all its fields, the body last."""
    place = f"{printable(message.topic)}/{message.queue_id} #{message.queue_offset}"
    rows: list[tuple[str, str | Text]] = [
        (
            "stored",
            f"{time_text(message.store_timestamp_ms)} at offset {message.physical_offset}, {message.size} bytes",
        ),
        ("born", f"{time_text(message.born_timestamp_ms)} on {message.born_host}"),
        ("msg id", message.msg_id),
    ]
    transaction = _TRANSACTIONS.get(message.sys_flag & FLAG_TRANSACTION_MASK)
    if transaction is not None:
        half = f", half message at {message.prepared_transaction_offset}" if transaction != _PREPARED else ""
        rows.append(("transaction", f"{transaction}{half}"))
    if message.reconsume_times:
        rows.append(("consumed again", f"{message.reconsume_times} times"))
    if message.flag:
        rows.append(("flag", str(message.flag)))
    rows += [(printable(name), printable(value)) for name, value in sorted(message.properties.items())]
    console.print(Rule(Text(place, style="bold"), align="left", style="dim"), width=min(console.width, _RULE_CELLS))
    console.print(output.facts(*rows))
    console.print()
    for text in _inner_texts(message) if is_inner_batch(message) else body_text(message):
        console.print(text, soft_wrap=True)  # so that a copied line stays one line
    console.print()


def _inner_texts(message: StoredMessage) -> list[Text]:
    """Return the messages of an inner batch: place and properties of each, and its body."""
    try:
        inner_batch = inner_messages(message)
    except FormatError as error:
        return [Text(error.reason, style="red"), *body_text(message)]
    texts = [Text(f"an inner batch of {output.counted(len(inner_batch), 'message')}", style="dim")]
    for inner_message in inner_batch:
        texts.append(Text(f"{printable(message.topic)}/{message.queue_id} #{inner_message.queue_offset}", style="bold"))
        texts += [
            Text(f"  {printable(name)}  {printable(value)}") for name, value in sorted(inner_message.properties.items())
        ]
        texts += body_text(replace(message, body=inner_message.body, flag=inner_message.flag))
    return texts


def body_text(message: StoredMessage) -> list[Text]:
    """Return a heading and the body: text if it is UTF-8, else its beginning in hex."""
    size = bytes_text(len(message.body))
    try:
        codec = Compression.of_sys_flag(message.sys_flag)
        body = decompress(message.body, message.sys_flag)
    except FormatError as error:
        return [Text(f"body, {size}: {error}", style="red")]
    if codec is not None:
        size = f"{bytes_text(len(body))}, {size} as {codec.name.lower()}"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        more = " …" if len(body) > HEX_BYTES else ""
        return [Text(f"body, {size}, not text", style="dim"), Text(body[:HEX_BYTES].hex(" ") + more)]
    lines = "\n".join(map(printable, text.expandtabs().split("\n")))
    return [Text(f"body, {size}", style="dim"), Text(lines)]
