"""Queues whose ends a repair would change, so that no committed offset is set to such an end."""

from collections.abc import Callable, Sequence
from shlex import quote
from typing import Final

from rmq_formats.errors import StoreError
from rmq_offline.offsets.changes import OffsetChange
from rmq_offline.tasks.runner import Runner
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Kind, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport

_AREAS: Final = frozenset({"consumequeue", "batchconsumequeue"})
_ENDS_STAND: Final = frozenset({finding_kinds.UNIT_LOST, finding_kinds.UNIT_TAGS_CODE})
_REBUILD_ADDS: Final = frozenset({finding_kinds.UNIT_NOT_ADDED, finding_kinds.QUEUE_ABSENT})


def unsound_queues(report: VerifyReport) -> dict[tuple[str, int], Kind]:
    """Return the queues whose ends a repair or a rebuild would change, each with a kind of its findings."""
    unsound: dict[tuple[str, int], Kind] = {}
    for kind, queues in report.faulty_queues.items():
        is_error = kind.severity is Severity.ERROR and kind.code.partition(".")[0] in _AREAS
        if (is_error and kind not in _ENDS_STAND) or kind in _REBUILD_ADDS:
            unsound |= dict.fromkeys(queues, kind)
    return unsound


def refuse_unsound_queues(
    root: str, options: VerifyOptions, runner: Runner
) -> Callable[[Sequence[OffsetChange]], None]:
    """Return a check that verifies the store, and refuses changes in unsound queues."""

    def check(changes: Sequence[OffsetChange]) -> None:
        queues = {change.position.queue for change in changes}
        if not queues:
            return
        unsound = unsound_queues(verify_store(root, options, runner))
        refused = sorted(queues & unsound.keys())
        if refused:
            (topic, queue_id), more = refused[0], len(refused) - 1
            raise StoreError(
                f"{topic}/{queue_id}{f' and {more} more' if more else ''}: the queue's ends are not known, since log "
                f"and queue differ ({unsound[topic, queue_id].code}). See rmq repair {quote(root)} --plan first, or "
                "give the offset by rmq offsets set"
            )

    return check
