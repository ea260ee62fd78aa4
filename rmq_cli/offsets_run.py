"""The work of ``rmq offsets``: plans or writes, and prints offsets and changes."""

from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rmq_cli import output
from rmq_cli.commands import interruptible_workers
from rmq_cli.output import counted, printable
from rmq_offline.offsets.changes import (
    Check,
    NewOffset,
    OffsetChange,
    OffsetsPlan,
    Selection,
    apply_changes,
    plan_changes,
)
from rmq_offline.offsets.positions import Position, State

LISTED: Final = 200  # rows of the table; --json has all
_STYLES: Final = {State.BEYOND: "red", State.NEGATIVE: "red", State.BELOW: "yellow"}


def run(
    store: str, selection: Selection, new_offset: NewOffset | None, check: Check | None, *, apply: bool, as_json: bool
) -> int:
    """Show, plan or write. Returns the exit code. Raises RmqError."""
    with interruptible_workers():
        if apply and new_offset is not None:
            plan = apply_changes(store, selection, new_offset, check)
        else:
            plan = plan_changes(store, selection, new_offset, check)
    if as_json:
        output.print_json(_to_dict(plan, is_change=new_offset is not None))
    else:
        show(plan, output.console(), is_change=new_offset is not None)
    if new_offset is not None:
        return output.EXIT_FINDINGS if plan.changes and plan.quarantine is None else output.EXIT_CLEAN
    is_outside = any(position.state in {State.BEYOND, State.NEGATIVE} for position in plan.positions)
    return output.EXIT_FINDINGS if is_outside else output.EXIT_CLEAN


def _to_dict(plan: OffsetsPlan, *, is_change: bool) -> dict[str, Any]:
    offsets = [_position_to_dict(position) for position in plan.positions]
    report: dict[str, Any] = {"job": "offsets", "store": plan.root, "offsets": offsets}
    if is_change:
        report["changes"] = [
            {**_position_to_dict(change.position), "new_offset": change.new_offset, "skipped": change.skipped}
            for change in plan.changes
        ]
        report["applied"] = plan.quarantine is not None
        report["quarantine"] = plan.quarantine
    return report


def _position_to_dict(position: Position) -> dict[str, Any]:
    committed = position.committed
    return {
        "group": committed.group, "delay_level": committed.queue_id + 1 if committed.group is None else None,
        "topic": committed.topic, "queue_id": committed.queue_id, "committed_offset": committed.queue_offset,
        "min_offset": position.min_offset,
        "max_offset": position.max_offset, "lag_messages": position.lag, "state": position.state.value,
    }  # fmt: skip


def show(plan: OffsetsPlan, console: Console, *, is_change: bool) -> None:
    """Print the offsets, or their changes."""
    columns = ["group", "topic", ">queue", ">committed", ">min", ">max", ">lag"]
    rows: list[tuple[Position, list[str | Text]]]
    if is_change:
        columns += [">new", "what follows"]
        rows = [(change.position, [str(change.new_offset), _effect(change)]) for change in plan.changes]
    else:
        columns += ["state"]
        rows = [(position, [_state(position)]) for position in plan.positions]
    if rows:
        table = output.table(*columns)
        for position, more in rows[:LISTED]:
            committed = position.committed
            owner = f"delay level {committed.queue_id + 1}" if committed.group is None else printable(committed.group)
            numbers = (committed.queue_offset, position.min_offset, position.max_offset, position.lag)
            table.add_row(owner, printable(committed.topic), str(committed.queue_id), *map(str, numbers), *more)
        console.print(table)
    output.print_unlisted(console, len(rows), LISTED, "--json lists them")
    console.print(_verdict(plan, is_change=is_change))


def _state(position: Position) -> Text:
    texts = {
        State.INSIDE: "",
        State.BELOW: f"{position.min_offset - position.committed.queue_offset:,} have expired",
        State.BEYOND: f"{-position.lag:,} beyond the end" if position.max_offset else "the queue has no messages",
        State.NEGATIVE: "negative",
    }
    return Text(texts[position.state], style=_STYLES.get(position.state, ""))


def _effect(change: OffsetChange) -> str:
    if change.skipped > 0:
        return f"{counted(change.skipped, 'message')} skipped"
    return f"{counted(-change.skipped, 'message')} again" if change.skipped else "no message skipped or repeated"


def _verdict(plan: OffsetsPlan, *, is_change: bool) -> Text:
    if not is_change:
        return Text(counted(len(plan.positions), "offset"), style="dim")
    if not plan.changes:
        return Text("nothing to change", style="green")
    changes = counted(len(plan.changes), "offset")
    if plan.quarantine is None:
        return Text(f"{changes} to change; --apply does it", style="yellow")
    return Text(f"{changes} changed; the files as they were are in {printable(plan.quarantine)}", style="green")
