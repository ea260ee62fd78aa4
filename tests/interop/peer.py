"""Runs the real Apache RocketMQ for tests: jars from Maven Central, built once a machine."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Final

SCRIPT = Path(__file__).parent / "peer" / "peer.sh"
QUICK_START: Final = "-XX:TieredStopAtLevel=1"  # of Java, for processes that live for seconds
_TIMEOUT_S = 300
_ONE_COMMAND = Lock()
_VARIABLE: Final = "PEER_VERSION"
OLDEST: Final = "5.3.3"  # what runs where nothing else is said
NEWEST: Final = "5.5.1"
# Of a run with one version, that one; else tests of what two releases may differ in run with both.
VERSIONS: Final = (os.environ[_VARIABLE],) if os.environ.get(_VARIABLE) else (OLDEST, NEWEST)


def version() -> str:
    """The release that ``peer.sh`` runs."""
    return os.environ.get(_VARIABLE) or OLDEST


def is_from_5_4() -> bool:
    """Whether the release is 5.4 or later: it indexes TAGS, and its JSON is fastjson2's."""
    return tuple(map(int, version().split(".")[:2])) >= (5, 4)


def version_name() -> str:
    """The release as brokers and mqadmin say it: ``V5_5_1``."""
    return f"V{version().replace('.', '_')}"


def index_tags() -> str:
    """``indexTags`` of a store that has the Index that the release makes: since 5.4 with an entry for TAGS."""
    return "yes" if is_from_5_4() else "no"


def recover_all() -> dict[str, object]:
    """Settings with which a release makes all of queues and Index anew after a kill, as 5.3.3 does without any.

    From 5.4 on Java looks at the last ten files of the log, and since 5.5 no longer at the three seconds before what
    the checkpoint says, so that keys in IndexFiles that were not full are lost (``CommitLog#recoverAbnormally``,
    ``IndexService#isMappedFileMatchedRecover``).
    """
    return {"commitLogRecoverMaxNum": 1_000_000, "messageIndexSafe": "true"} if is_from_5_4() else {}


def version_with_users() -> str:
    """The release to run where users sign requests.

    Maven Central has no ``rocketmq-auth`` 5.5.1. With that of 5.5.0 a broker 5.5.1 answers each request that needs a
    right with a NoSuchMethodError (``AuthorizationEvaluator#evaluate``).
    """
    return "5.5.0" if version() == NEWEST else version()


@contextmanager
def running(release: str) -> Iterator[None]:
    """Run a release within the block, whatever started it all."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = release
    try:
        build()
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def build() -> None:
    """Fetch the jars and compile the helpers; quick where that was done before."""
    _build(version())


@cache
def _build(_version: str) -> None:
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
def _commands(_version: str, java_options: str) -> subprocess.Popen[bytes]:
    """Runs many commands of a release; it ends with this process, at the end of its input."""
    build()
    environment = {**os.environ, "PEER_JAVA_OPTS": f"{QUICK_START} {java_options}"}
    return subprocess.Popen(
        ["bash", SCRIPT, "commands"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def command(*arguments: str, java_options: str = "") -> str:
    """Run ``dump``, ``queues`` or a command of the admin tool, without a start; all that it printed."""
    with _ONE_COMMAND:
        if _commands(version(), java_options).poll() is not None:  # an earlier command was its last
            _commands.cache_clear()
        process = _commands(version(), java_options)
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

    In a process of its own: Java keeps the files of a closed store open, and our tools refuse a log that is open.
    """
    given = (f"{key}={value}" for key, value in settings.items())
    output = run("rebuild", str(store), *given, java_options=QUICK_START)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def dump(store: Path) -> list[dict[str, Any]]:
    """Each record of a store as Java decodes it."""
    return [json.loads(line) for line in command("dump", str(store)).splitlines() if line.startswith("{")]
