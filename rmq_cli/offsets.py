"""``rmq offsets``: shows and changes the committed offsets of a store at rest."""

from enum import StrEnum
from typing import Annotated

import typer

from rmq_cli.arguments import AsOneJson, BrokerConfFile, StorePath, apply_broker_conf, parse_time
from rmq_formats.errors import OptionError


class Action(StrEnum):
    """Action of ``rmq offsets``."""

    SHOW = "show"
    SET = "set"
    RESET = "reset"
    CLAMP = "clamp"


def offsets(
    store: StorePath,
    action: Annotated[
        Action,
        typer.Argument(
            metavar="[show|set|reset|clamp]",
            help="show; set to --offset; reset to the first message of --time; clamp into the queue's range.",
            show_default=False,
        ),
    ] = Action.SHOW,
    *,
    group: Annotated[str | None, typer.Option(metavar="G", help="Only offsets of this consumer group.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="Only in this topic.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, metavar="Q", help="Only in queues with this number.")] = None,
    delay_level: Annotated[
        int | None, typer.Option(min=1, metavar="L", help="Only the offset of this delay level, and of no group.")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="With set: the new offset.")] = None,
    time: Annotated[
        str | None, typer.Option(metavar="ISO", help="With reset: a store time, UTC if without a zone; or ms.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write; without it the plan is printed.")] = False,
    config: BrokerConfFile = None,
    as_json: AsOneJson = False,
) -> int:
    """Show, set, reset or clamp committed offsets of consumer groups and delay levels. The broker must be stopped.

    Without --apply the changes are printed, and nothing is written. With --apply the old files go to STORE/quarantine
    and to .bak. Exit codes: 0 sound or done, 1 an offset is negative or beyond its queue's end, or a plan has
    changes, 2 could not run.
    """
    if delay_level is not None and (group is not None or topic is not None or queue is not None):
        raise OptionError("--delay-level: cannot be combined with --group, --topic or --queue. Leave these out.")
    if (offset is not None) != (action is Action.SET):
        raise OptionError("--offset: required by set, and allowed with set only")
    if (time is not None) != (action is Action.RESET):
        raise OptionError("--time: required by reset, and allowed with reset only")
    if action in {Action.SET, Action.RESET} and group is None and delay_level is None:
        raise OptionError(f"{action}: give --group or --delay-level")
    if action is Action.SET and delay_level is None and topic is None:
        raise OptionError("set: give --topic, too")
    if apply and action is Action.SHOW:
        raise OptionError("--apply: needs set, reset or clamp")
    from rmq_cli import offsets_run  # noqa: PLC0415 # takes a second to load
    from rmq_offline.offsets.changes import NewOffset, Selection, clamped_offset, offset_at_time, offset_inside  # noqa: PLC0415

    conf = apply_broker_conf(config, [store])
    new_offset: NewOffset | None = None
    if action is Action.CLAMP:
        new_offset = clamped_offset
    elif offset is not None:
        new_offset = offset_inside(offset)
    elif time is not None:
        new_offset = offset_at_time(store, parse_time(time))
    check = None
    if action in {Action.CLAMP, Action.RESET}:  # the offset comes from the queue, which has to be sound
        from rmq_offline.offsets.unsound_queues import refuse_unsound_queues  # noqa: PLC0415
        from rmq_offline.tasks.runner import ProcessRunner  # noqa: PLC0415
        from rmq_offline.verify.phases.plan import VerifyOptions  # noqa: PLC0415

        check = refuse_unsound_queues(store, VerifyOptions.from_arguments({}, conf), ProcessRunner())
    selection = Selection(group, topic, queue, delay_level)
    return offsets_run.run(store, selection, new_offset, check, apply=apply, as_json=as_json)
