"""Text of a stranger is printable before it reaches a terminal or a log: no escape, no line of its own."""

import io
import json
import logging
import re
import unicodedata
from pathlib import Path

import pytest
from rich.text import Text

from rmq_cli import output
from rmq_cli.consume import _printable_line
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.errors import one_line, printable
from rmq_offline.tasks.log_format import PrintableFormatter
from tests.cli.conftest import Rmq
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import FILE_BYTES, message

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\nFORGED \x00\x08\x7f\x85\x9b31m\u2028\u2029\u202e\u2066\ufeff"
FORBIDDEN = {"Cc", "Cf", "Zl", "Zp", "Cs"}


def hostile_characters(text: str) -> set[str]:
    """Characters that may do something to a terminal, but for ends of lines."""
    return {character for character in text if character != "\n" and unicodedata.category(character) in FORBIDDEN}


def has_forged_line(text: str) -> bool:
    return re.search(r"^\s*FORGED", text, re.MULTILINE) is not None


def test_controls_become_escapes_and_text_of_any_language_stays() -> None:
    assert printable("a\x1b[2J\n\t\x9b\u2028\u202e\ud800") == r"a\x1b[2J\n\t\x9b\u2028\u202e\ud800"
    for text in ("Grüße", "订单", "سلام\u200cها", "👩\u200d👩", "a\u00a0b\u3000c"):
        assert printable(text) == text
    assert one_line("a\r\n b\u2028c\x1b") == r"a b c\x1b"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of a stranger: records, files and config with hostile text."""
    root = tmp_path / "store"
    properties = {"TAGS": HOSTILE, "KEYS": f"k {HOSTILE}", "UNIQ_KEY": HOSTILE, HOSTILE: HOSTILE}
    encoded = encode_properties({name.replace("\x01", ""): value for name, value in properties.items()})
    write_commitlog(
        root,
        [
            message(
                number,
                topic=f"Orders{HOSTILE}"[:60] if number % 2 else "Orders",
                properties_bytes=encoded,
                body=HOSTILE.replace("\n", "").encode(),
            )
            for number in range(20)
        ],
        FILE_BYTES,
    )
    for name in ("commitlog", "consumequeue", "index", "config"):
        (root / name).mkdir(exist_ok=True)
        (root / name / f"x{HOSTILE}y".replace("\0", "")).write_text(HOSTILE)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {HOSTILE: {}}}))
    offsets = {"offsetTable": {f"{HOSTILE}@{HOSTILE}": {"0": 9}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    return root


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["dump"],
        ["verify"],
        ["rebuild"],
        ["repair"],
        ["query", "--topic", "Orders", "--queue", "0", "--offset", "0"],
        ["query", "--key", HOSTILE, "--topic", HOSTILE],
        ["convert", "--to", "classic", "--out", HOSTILE.replace("\0", "")],
        ["verify", f"--{HOSTILE}"],
        ["repair", "--work", HOSTILE.replace("\0", "")],
    ],
    ids=lambda arguments: printable(" ".join(arguments))[:40],
)
def test_no_command_prints_what_a_terminal_obeys(store: Path, rmq: Rmq, arguments: list[str]) -> None:
    command, *options = arguments
    done = rmq(command, store, *options)
    for stream in (done.stdout, done.stderr):
        assert hostile_characters(stream) == set()
        assert not has_forged_line(stream)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


def test_tables_and_facts_are_made_printable(capsys: pytest.CaptureFixture[str]) -> None:
    table = output.table("what", HOSTILE)
    table.add_row(HOSTILE, Text(HOSTILE, style="red"))
    for renderable in (table, output.facts((HOSTILE, HOSTILE), ("text", Text(HOSTILE)))):
        output.console().print(renderable)
    output.console().print(HOSTILE.replace("\r\n", ""))
    output.warn(HOSTILE)
    printed = capsys.readouterr()
    for stream in (printed.out, printed.err):
        assert hostile_characters(stream) == set()
        assert not has_forged_line(stream)
        assert r"\x1b" in stream


def test_a_line_of_the_log_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.Logger("rmq.test")
    log.addHandler(handler)
    log.warning("access key %s is unknown", HOSTILE)
    log.warning("%(user)s", {"user": HOSTILE}, stack_info=True)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("of %s", HOSTILE)
    written = stream.getvalue()
    assert hostile_characters(written) == set()
    assert not re.search(r"^FORGED", written, re.MULTILINE)
    lines = written.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [line for line in lines if line[:2] == "20"]


def test_a_body_on_a_terminal_is_a_printable_line() -> None:
    class Received:
        body = HOSTILE.encode() + b"\xff\ttab"

    line = _printable_line(Received())  # type: ignore[arg-type]
    assert hostile_characters(line.decode()) == set()
    assert line.count(b"\n") == 1
