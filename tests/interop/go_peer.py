"""Runs the official Go clients for tests: a program of ours over each (``main.go``), built once a machine."""

import fcntl
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

REMOTING, GRPC = "go", "go5"  # the client of RocketMQ 4, and that of 5: their directories
_TIMEOUT_S = 300
IS_THERE = shutil.which("go") is not None


@cache
def build(name: str) -> Path:
    """The program over a client; its modules come from Go's proxy, and Go's own cache has what was built before."""
    directory = Path(os.environ.get("PEER_HOME", Path.home() / ".cache" / "rocketmq-peer"))
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / f"{name}-client"
    with (directory / "go-lock").open("w") as lock:  # several test processes may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        subprocess.run(
            ["go", "build", "-o", program, "."],
            cwd=Path(__file__).parent / name,
            env=environment,
            check=True,
            timeout=_TIMEOUT_S,
        )
    return program


def run(namesrv: str, *arguments: object, name: str = REMOTING) -> list[dict[str, Any]]:
    """Run a command of ``main.go`` at a name server, or at a proxy; the objects that it prints."""
    command = [build(name), namesrv, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
