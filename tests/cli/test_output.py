"""Numbers, times and text for people; the bar, and where it is left out."""

import io
import sys

import pytest

from rmq_cli import output


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (999 * 1024, "999.0 KiB"),
        (1000 * 1024, "1.0 MiB"),
        (6.1 * 1024**3, "6.1 GiB"),
        (5 * 1024**4, "5.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_sizes_have_a_unit(size: float, text: str) -> None:
    assert output.bytes_text(size) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (None, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1795230317922, "2026-11-21T03:05:17.922Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1 << 62, f"{1 << 62} ms"),
        (-(1 << 62), f"{-(1 << 62)} ms"),
    ],
)
def test_times_are_utc_and_numbers_beyond_the_calendar(time_ms: int | None, text: str) -> None:
    assert output.time_text(time_ms) == text


def test_times_to_the_second_have_no_fraction() -> None:
    assert output.second_text(1795230317922) == "2026-11-21T03:05:17Z"
    assert output.second_text(1 << 62) == f"{1 << 62} ms"


def test_nouns_are_counted() -> None:
    assert [output.counted(count, "file") for count in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]
    assert output.counted(2, "entry") == "2 entries"


def test_what_steers_a_terminal_is_escaped() -> None:
    assert output.printable("订单 é") == "订单 é"
    assert output.printable("a\x1b[31m\n\u202e") == r"a\x1b[31m\n\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_is_shown_on_a_terminal_for_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = {}
    for after in (0.0, 3600.0):
        monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", after)
        monkeypatch.setattr(sys, "stderr", Terminal())
        with output.progress("Reading", 100) as advance:
            advance(1)
            advance(50)
        shown[after] = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "Reading" in shown[0.0]
    assert shown[3600.0] == ""


def test_no_bar_is_shown_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with output.progress("Reading", 100) as advance:
        advance(100)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_in_a_pipe_no_line_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    table = output.table("topic", ">n")
    table.add_row("x" * 300, "1")
    output.console().print(table)
    assert "x" * 300 in sys.stdout.getvalue()  # type: ignore[attr-defined]
