"""``rmq standalone`` and ``rmq broker`` as processes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import warm_processes

COMMAND = [sys.executable, "-c", "from rmq_cli.main import main; main()"]
START_S = 60
# Of a broker on a machine that is busy: no send is refused for the machine's sake.
PATIENT = "brokerFastFailureEnable=false\nosPageCacheBusyTimeOutMills=60000\n"
# A broker allocates its log's files, of 1 GiB by default, and tests' stores are in memory.
SMALL_FILES = f"mappedFileSizeCommitLog={16 << 20}\n"


@dataclass(frozen=True)
class Standalone:
    """A running name server with its broker.

    Attributes:
        process: both.
        namesrv: the name server's address.
        broker: the broker's.
        errors: the file that has the log.
    """

    process: "subprocess.Popen[bytes]"
    namesrv: str
    broker: str
    errors: Path

    def stop(self) -> int:
        """End it as Ctrl-C does; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=120)


@contextmanager
def standalone(store: Path, *arguments: str, log: Path) -> Iterator[Standalone]:
    """A name server and a broker on free ports; killed at the end if it still runs."""
    free = ["--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"]
    command = [*COMMAND, "standalone", "--store", str(store), *free, *arguments]
    with log.open("ab") as errors:
        process = warm_processes.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        told = re.fullmatch(r"name server (\S+), broker (\S+)\n", line)
        if told is None:
            pytest.fail(f"it did not start: {line}{log.read_text()}")
        yield Standalone(process, told[1], told[2], log)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


@contextmanager
def configured(directory: Path, settings: str, *arguments: str) -> Iterator[Standalone]:
    """The same with settings: ``broker.conf``, ``store`` and ``log`` are below a directory."""
    conf = directory / "broker.conf"
    conf.write_text(f"{SMALL_FILES}{PATIENT}{settings}")
    with standalone(directory / "store", "-c", str(conf), *arguments, log=directory / "log") as running:
        yield running


def failure(*arguments: str) -> str:
    """What a command that cannot run says; it has to exit with 2."""
    done = warm_processes.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
