"""``rmq decodeMessageId``: decodes message ids without a broker or a store."""

import time
from typing import Annotated

import typer

from rmq_cli import output
from rmq_formats.codecs.message_id import UniqueId, decode_message_id, is_offset_id


def decode(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Message ids, of any kind.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Decode message ids: an offset id names broker and physical offset, a unique id the producer that made it.

    The month is not in a unique id: its time is the last one that it can be of. rmq query finds the message.
    """
    for text in ids:
        row = describe_message_id(text, time.time_ns() // 1_000_000)
        if as_json:
            output.print_json(row)
        else:
            output.console().print(output.facts(*((name.replace("_", " "), str(part)) for name, part in row.items())))
    return output.EXIT_CLEAN


def describe_message_id(text: str, now_ms: int) -> dict[str, str | int]:
    """Return the parts of an id by name. Raises DecodeError."""
    unique = UniqueId.decode(text)
    if is_offset_id(text):
        host, physical_offset = decode_message_id(text)
        return {
            "id": text, "kind": "offset id (msgId)", "store_host": str(host), "physical_offset": physical_offset,
        }  # fmt: skip
    return {
        "id": text, "kind": "unique id (UNIQ_KEY)", "producer_ip": unique.ip, "pid": unique.pid,
        "class_loader": f"{unique.loader:08x}", "ms_since_month_began": unique.month_ms,
        "last_possible_time": output.time_text(unique.nearly_time_ms(now_ms)), "number": unique.number,
    }  # fmt: skip
