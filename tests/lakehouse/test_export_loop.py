"""The loop of exports that follow a source: a cluster that is away for a while does not end it."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rmq_formats.errors import ClusterError, NoTopicError, StoreError, UnreachableError
from rmq_lakehouse import exports
from rmq_lakehouse.exports import ExportCounts, ExportLoop


class Rounds:
    """A source whose rounds end as a list says: with an error, or with nothing to export."""

    def __init__(self, ends: Sequence[Exception | None], stopped: threading.Event) -> None:
        self.ends, self.stopped, self.begun = iter(ends), stopped, 0
        self.parts = [type("Part", (), {"exports": ()})]

    def begin_round(self) -> None:
        self.begun += 1
        try:
            end = next(self.ends)
        except StopIteration:
            self.stopped.set()
            return
        if end is not None:
            raise end

    def end_round(self, _added: Sequence[ExportCounts]) -> bool:
        return False


def rounds(monkeypatch: pytest.MonkeyPatch, *ends: Exception | None, minutes: float = 0) -> int:
    """How many rounds the loop begins; each takes so many minutes."""
    stopped = threading.Event()
    monkeypatch.setattr(exports.threading, "Event", lambda: stopped)
    source: Any = Rounds(ends, stopped)
    ExportLoop(source, list, lambda: source.begun * minutes * 60.0).run(0.0)
    return source.begun


AWAY = UnreachableError("cluster of the name server a:1: b:2: no connection")


def test_a_cluster_that_is_away_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds(monkeypatch, None, AWAY, NoTopicError("no topic 'T'"), None, AWAY) == 6


@pytest.mark.parametrize("end", [ClusterError("offsets 3 to 5 were deleted"), StoreError("the table was deleted")])
def test_other_errors_end_the_loop(monkeypatch: pytest.MonkeyPatch, end: Exception) -> None:
    with pytest.raises(type(end), match=str(end)):
        rounds(monkeypatch, None, end)


def test_a_cluster_that_never_answered_or_is_away_for_long_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError):
        rounds(monkeypatch, AWAY, None)
    with pytest.raises(UnreachableError):
        rounds(monkeypatch, None, AWAY, AWAY, AWAY, AWAY, minutes=4)
