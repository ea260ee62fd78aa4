"""Runs the real Apache RocketMQ for tests: jars from Maven Central, built once a machine."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "peer" / "peer.sh"
_TIMEOUT_S = 300


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


def rebuild(store: Path, **settings: object) -> dict[str, Any]:
    """Open a store as the Java broker does, which rebuilds its ConsumeQueue and Index; its report."""
    output = run("rebuild", str(store), *(f"{key}={value}" for key, value in settings.items()))
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def dump(store: Path) -> list[dict[str, Any]]:
    """Each record of a store as Java decodes it."""
    return [json.loads(line) for line in run("dump", str(store)).splitlines() if line.startswith("{")]
