"""The commands of docs/replication.md run, and the slave has all."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ha.conftest import port_for_long

PAGE = (Path(__file__).parents[2] / "docs" / "replication.md").read_text()
PATIENCE_S = 300  # a machine may be busy, and the slave behind an answer with it


@pytest.mark.long
def test_its_failover_runs(tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for port in ("9876", "10911", "11911"):
        assert f":{port}" in commands
        commands = commands.replace(f":{port}", f":{port_for_long()}")
    assert "rmq produce " in commands
    commands = commands.replace("rmq produce ", f"rmq produce --timeout {PATIENCE_S} ")
    (namesrv,) = re.findall(r"namesrv --listen (\S+)", commands)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    log = tmp_path / "log"
    with log.open("wb") as errors:
        shell = subprocess.Popen(
            ["bash", "-c", commands.replace("/tmp/", f"{tmp_path}/") + "wait"],
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "PATH": path, "NAMESRV_ADDR": namesrv},
        )
    try:
        output, _ = shell.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"after {PATIENCE_S} s: {(late.output or b'')[-2000:]!r} {log.read_text()[-3000:]}")
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, 9)  # with all that it started
            shell.communicate()
    numbers = re.findall(r"\b\d+$", output, re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, 1001)), output[-2000:] + log.read_text()[-3000:]
