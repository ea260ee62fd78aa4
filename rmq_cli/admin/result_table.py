"""The output of ``rmq admin`` commands: printed as a table, or as one JSON object a line.

A column's name is its key in JSON; in a table it stands without underscores. Columns in ``_ms`` are times, and
numbers stand on the right.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmq_cli import output

if TYPE_CHECKING:
    from rmq_core.client import ReceivedMessage

_MESSAGE_COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "store_timestamp_ms", "tags", "keys", "msg_id", "body",
)  # fmt: skip
_TIME: Final = "_ms"
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of values under column names.

    Attributes:
        lines: JSON objects to print instead of the rows with ``--json``.
        always_lines: whether to print ``lines`` also without ``--json``.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Value]]
    lines: Sequence[bytes] | None = None
    always_lines: bool = False
    note: str = ""
    code: int = output.EXIT_CLEAN


async def apply_to_brokers(
    brokers: Sequence[str], request: Callable[[str], Awaitable[object]], columns: tuple[str, ...], *values: Value
) -> ResultTable:
    """Send a request to each broker; build the table with a row for each, its address before the values."""
    for address in brokers:
        await request(address)
    return ResultTable(("broker", *columns), [(address, *values) for address in brokers])


def table_of_messages(
    messages: "Iterable[ReceivedMessage]", *, with_body: bool = True, charset: str = "utf-8"
) -> ResultTable:
    """Build the answer for messages, in the format of ``rmq consume --json``; the exit code is 1 if there are none."""
    from rmq_core.client.json_lines import line_of_message  # noqa: PLC0415 # --help does not need it

    shown = list(messages)
    rows = [
        (
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.store_timestamp_ms,
            message.tags,
            " ".join(message.keys),
            message.msg_id,
            _text(message.body, charset) if with_body else f"{len(message.body)} bytes",
        )
        for message in shown
    ]
    code = output.EXIT_CLEAN if shown else output.EXIT_FINDINGS
    return ResultTable(
        _MESSAGE_COLUMNS, rows, lines=[line_of_message(message, charset) for message in shown], code=code
    )


def _text(body: bytes, charset: str) -> str:
    """Return a body as text for people; what the charset or UTF-8 cannot express becomes a question mark."""
    try:
        return body.decode(charset, "replace").encode("utf-8", "replace").decode()
    except UnicodeError:  # some charsets have no replacement character
        return f"{len(body)} bytes"


async def show_all(answers: AsyncIterable[ResultTable], *, as_json: bool) -> int:
    """Print answers as they come; return the last one's exit code, or 0."""
    code = output.EXIT_CLEAN
    async for answer in answers:
        code = show(answer, as_json=as_json)
    return code


def show(answer: ResultTable, *, as_json: bool) -> int:
    """Print an answer; return the exit code."""
    if as_json or answer.always_lines:
        _print_lines(answer)
        return answer.code
    if answer.rows:
        _print_table(answer)
    elif answer.code != output.EXIT_CLEAN:
        output.warn("nothing found")
        return answer.code
    if answer.note:
        output.console().print(answer.note)
    return answer.code


def _print_lines(answer: ResultTable) -> None:
    if answer.lines is None:
        for row in answer.rows:
            output.print_json(dict(zip(answer.columns, row, strict=True)))
        return
    with output.Lines() as lines:
        for line in answer.lines:
            lines.write(line)


def _print_table(answer: ResultTable) -> None:
    columns = []
    for column, value in zip(answer.columns, answer.rows[0], strict=True):
        is_time = column.endswith(_TIME)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and not is_time
        columns.append((">" if is_number else "") + column.removesuffix(_TIME).replace("_", " "))
    table = output.table(*columns)
    for row in answer.rows:
        table.add_row(*(_cell(column, value) for column, value in zip(answer.columns, row, strict=True)))
    output.console().print(table)


def _cell(column: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if column.endswith(_TIME) and isinstance(value, int):
        return output.time_text(value) if value > 0 else "-"
    return f"{value:.2f}" if isinstance(value, float) else output.printable(str(value))
