"""Runs the real Apache RocketMQ for tests: jars from Maven Central, built once a machine."""

import base64
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Final

SCRIPT = Path(__file__).parent / "peer" / "peer.sh"
QUICK_START: Final = "-XX:TieredStopAtLevel=1"  # of Java, for processes that live for seconds
_TIMEOUT_S = 300
_ONE_COMMAND = Lock()


@cache
def build() -> None:
    """Fetch the jars and compile the helpers; quick where that was done before."""
    subprocess.run(["bash", SCRIPT, "build"], check=True, timeout=_TIMEOUT_S, capture_output=True)


def run(*arguments: str, java_options: str = "") -> str:
    """Run a command of ``peer.sh`` and give its stdout."""
    build()
    environment = {**os.environ, "PEER_JAVA_OPTS": java_options}
    done = subprocess.run(
        ["bash", SCRIPT, *arguments], timeout=_TIMEOUT_S, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@cache
def _commands(java_options: str) -> subprocess.Popen[bytes]:
    """Runs many commands; it ends with this process, at the end of its input."""
    build()
    environment = {**os.environ, "PEER_JAVA_OPTS": f"{QUICK_START} {java_options}"}
    return subprocess.Popen(
        ["bash", SCRIPT, "commands"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip


def command(*arguments: str, java_options: str = "") -> str:
    """Run ``dump``, ``queues`` or a command of the admin tool, without a start; all that it printed."""
    with _ONE_COMMAND:
        if _commands(java_options).poll() is not None:  # an earlier command was its last
            _commands.cache_clear()
        process = _commands(java_options)
        assert process.stdin is not None
        assert process.stdout is not None
        patience = Timer(_TIMEOUT_S, process.kill)
        patience.start()
        try:
            process.stdin.write(base64.b64encode("\0".join(arguments).encode()) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            patience.cancel()
    assert answer, f"{' '.join(arguments)}: it ended with code {process.wait()}"
    printed = base64.b64decode(answer.removeprefix(b"!")).decode()
    assert not answer.startswith(b"!"), printed[-4000:]
    return printed


def rebuild(store: Path, **settings: object) -> dict[str, Any]:
    """Open a store as the Java broker does, which rebuilds its ConsumeQueue and Index; its report.

    In a process of its own: Java names an IndexFile by the millisecond of its creation, and one that has compiled its
    code already creates two small ones in one, and loses the first.
    """
    output = run("rebuild", str(store), *(f"{key}={value}" for key, value in settings.items()))
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def dump(store: Path) -> list[dict[str, Any]]:
    """Each record of a store as Java decodes it."""
    return [json.loads(line) for line in command("dump", str(store)).splitlines() if line.startswith("{")]
