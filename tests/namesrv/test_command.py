"""``rmq namesrv`` as a process."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.header import request
from tests.support.processes import warm_processes

SCRIPT = """
import sys
from rmq_cli import main
from rmq_cli.servers import namesrv

if "namesrv" not in main.COMMANDS:
    main.app.command("namesrv", cls=main.RmqCommand)(namesrv.namesrv)
main.main(["namesrv", *sys.argv[1:]])
"""


def start(*arguments: str) -> "subprocess.Popen[str]":
    return warm_processes.Popen([sys.executable, "-c", SCRIPT, *arguments], stderr=subprocess.PIPE, text=True)


@contextmanager
def running(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    process = start(*arguments)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            listens = re.search(r"name server listens on (\S+)", line)
            if listens:
                break
        else:
            pytest.fail("it did not start")
        yield process, listens[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def settings(tmp_path: Path, text: str = "") -> str:
    file = tmp_path / "namesrv.conf"
    file.write_text(f"bindAddress=127.0.0.1\nlistenPort=0\nkvConfigPath={tmp_path}/kvConfig.json\n{text}")
    return str(file)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    async def ask(address: str) -> int:
        async with RemotingClient() as client:
            return (await client.invoke(address, request(206))).code

    with running("-c", settings(tmp_path, "serverWorkerThreads=8\n")) as (process, address):
        assert asyncio.run(ask(address)) == 0
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"name server on {address} has stopped" in errors
    assert "Traceback" not in errors


def failure(*arguments: str) -> str:
    process = start(*arguments)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    return errors


def test_a_port_in_use_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        errors = failure("--listen", f"127.0.0.1:{port}", "-c", settings(tmp_path))
    assert re.fullmatch(rf"rmq: 127\.0\.0\.1:{port}: cannot listen: .*\n", errors)


@pytest.mark.parametrize(
    ("listen", "text", "reason"),
    [
        ("nonsense", "", "--listen: 'nonsense' is not HOST:PORT"),
        ("127.0.0.1:99999", "", "listen_port: 99999 is not between 0 and 65535"),
        ("127.0.0.1:0", "listenPrt=1", "unknown key 'listenPrt'"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(tmp_path: Path, listen: str, text: str, reason: str) -> None:
    errors = failure("--listen", listen, "-c", settings(tmp_path, text))
    assert reason in errors
    assert errors.count("\n") == 1


def test_a_damaged_key_value_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    errors = failure("-c", settings(tmp_path))
    assert "kvConfig.json" in errors
    assert errors.count("\n") == 1
