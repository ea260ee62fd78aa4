"""Masters one after another, each a fork of a process that has all loaded: they begin at once.

Run as a program with a store and a file of settings. For each line of its stdin it starts a master, which tells
its process and its address; and when that has ended, it tells the exit status.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_cli.servers.serving import serve_until_stopped
from rmq_core.broker.broker import Broker
from rmq_core.broker.config import load_config
from rmq_core.remoting.loop import run
from rmq_core.store.dispatch.kernel_loading import load_kernels
from tests.support.processes import warm_processes

ROOT = Path(__file__).parents[3]


class Masters:
    """The program, and the master that is running.

    Attributes:
        address: of the master.
        pid: likewise.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.address = ""
        self.pid = 0
        self._process = process

    def start(self) -> None:
        """Start the next one, and wait until it listens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        pid, self.address = self._process.stdout.readline().split()
        self.pid = int(pid)

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> int:
        """Wait for its end; the exit code, or the signal's number below 0."""
        assert self._process.stdout is not None
        code = os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
        self.pid = 0  # another process may have it soon
        return code


@contextmanager
def masters(store: Path, settings: str, log: Path) -> Iterator[Masters]:
    """The program, which ends with its stdin."""
    command = [sys.executable, "-m", "tests.support.processes.forked_masters", str(store), settings]
    with log.open("ab") as errors:
        process = warm_processes.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
        )
    try:
        yield Masters(process)
    finally:
        process.communicate(timeout=60)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _serve(store: str, settings: str) -> None:
    config, store_config, _ = load_config(store, Path(settings), {"listen_port": 0}, {})
    broker = Broker(config, store_config)
    run(serve_until_stopped(broker, started=lambda: _tell(f"{os.getpid()} {broker.address}")))


def _main() -> None:
    load_kernels()
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            _serve(*sys.argv[1:])
            os._exit(0)
        _tell(str(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    _main()
