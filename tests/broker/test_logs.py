"""What servers log: lines for people, or an object a line."""

import ast
import asyncio
import json
import logging
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rmq_cli.servers.serving import JsonFormatter
from rmq_core.remoting.client import RemotingClient
from rmq_core.store.store import MessageStore
from tests.broker.conftest import small_store
from tests.broker.test_kill import send
from tests.store.test_cleaning import SizedDisk
from tests.support.processes.broker_processes import Standalone, failure, standalone

LEVELS = {"debug", "info", "warning", "error", "exception"}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def the_one(found: list[dict[str, Any]], beginning: str) -> dict[str, Any]:
    (one,) = [line for line in found if line["message"].startswith(beginning)]
    return one


def use(running: Standalone) -> None:
    """Have a message stored, and send what is no frame."""

    async def main() -> None:
        async with RemotingClient() as client:
            assert (await client.invoke(running.broker, send(1, 1), 60)).code == 0

    asyncio.run(main())
    host, _, port = running.broker.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"\xff" * 8)
        assert connection.recv(1) == b""


@pytest.mark.long
def test_each_line_is_an_object_with_what_its_message_names(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with standalone(tmp_path / "store", "--log-format", "json", log=log) as running:
        use(running)
        assert running.stop() == 0
    found = lines(log)
    assert all({"ts", "level", "logger", "message"} <= line.keys() for line in found)
    moments = [datetime.fromisoformat(line["ts"]) for line in found]
    assert moments == sorted(moments)
    assert all(moment.tzinfo == UTC for moment in moments)
    listens = the_one(found, "broker broker-a listens on")
    assert (listens["level"], listens["logger"]) == ("INFO", "rmq.broker")
    assert (listens["broker"], listens["address"]) == ("broker-a", running.broker)
    closed = the_one(found, "closed 127.0.0.1:")
    assert (closed["level"], closed["message"]) == ("WARNING", f"closed {closed['client']}: {closed['error']}")
    assert the_one(found, f"broker on {running.broker} has stopped")["complete"] is True


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.long
def test_a_broker_tells_that_it_had_to_recover(tmp_path: Path, form: str) -> None:
    log = tmp_path / "log"
    with standalone(tmp_path / "store", log=log) as running:
        use(running)
        running.process.kill()
    log.unlink()
    with standalone(tmp_path / "store", "--log-format", form, log=log):
        pass
    if form == "json":
        assert the_one(lines(log), "the store was not shut down in order")["records"] == 1
    else:
        assert "INFO rmq.broker: the store was not shut down in order: read 1 records from 0 to " in log.read_text()


def test_a_form_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    for command in (["standalone", "--store", str(tmp_path)], ["broker", "--store", str(tmp_path)], ["namesrv"]):
        assert "'xml' is not one of 'text', 'json'" in failure(*command, "--log-format", "xml")


def test_an_exception_and_odd_values_stay_in_their_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        kept = error
    given = {"ts": "not the time", "path": Path("a"), "n": 1}
    caught = (ValueError, kept, kept.__traceback__)
    record = logging.LogRecord("rmq.test", logging.ERROR, "", 0, "%(path)s failed", (given,), caught)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["message"], told["path"], told["n"]) == ("a failed", "a", 1)
    assert told["ts"] != "not the time"
    assert "ValueError: two\nlines" in told["exception"]


def test_the_store_s_lines_have_what_they_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = SizedDisk()
    store = MessageStore.open(small_store(tmp_path / "store"), 1, disk=disk)
    for disk.ratio in (1.0, 0.1):
        store.clean(2)
    assert store.shutdown()
    told = [json.loads(JsonFormatter().format(one)) for one in caplog.records]
    root, why = store.config.root, "the disk is nearly full"
    assert [(one["level"], one["store"], one["why"]) for one in told] == [("ERROR", root, why), ("WARNING", root, why)]
    assert told[0]["message"] == f"{root}: appends are refused: {why}"


def positional_lines(file: Path) -> list[int]:
    """Lines of calls of a logger whose values have no names: ``log.info("%s", value)``."""
    return [
        call.lineno
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("log", "_LOGGER")
        and len(call.args) > 1
        and not isinstance(call.args[1], ast.Dict)
    ]


@pytest.mark.parametrize("package", ["broker", "ha", "namesrv", "remoting", "store"])
def test_each_line_of_a_server_names_its_values(package: str) -> None:
    files = sorted((Path(__file__).parents[2] / "rmq_core" / package).rglob("*.py"))
    assert files
    assert {file.name: found for file in files if (found := positional_lines(file))} == {}
