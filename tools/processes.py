"""``rmq`` commands that serve, as processes, for the demo and the benchmarks."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Standalone:
    """A name server and a broker that serve; ``namesrv`` and ``broker`` are ``host:port``."""

    pid: int
    namesrv: str
    broker: str


@contextmanager
def running(log: Path, *arguments: str, stdout: int | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Run a command of ``rmq``, ended by SIGTERM; its output goes into the log, but for a given ``stdout``."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "rmq"), *arguments],
            stdout=file if stdout is None else stdout,
            stderr=file,
            text=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def standalone(store: Path, conf: str) -> Iterator[Standalone]:
    """Run ``rmq standalone`` on free ports, with ``broker.conf`` properties. Raises RuntimeError with the log's words.

    Settings and log are files beside the store.
    """
    log = store.with_suffix(".log")
    arguments = ("--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0", *_settings(store, conf))
    with running(log, "standalone", *arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()  # "name server HOST:PORT, broker HOST:PORT"
        if not first_line:
            raise RuntimeError(f"rmq standalone did not start: {log.read_text().strip()}")
        namesrv, broker = (part.split()[-1] for part in first_line.split(","))
        yield Standalone(process.pid, namesrv, broker)


def broker(
    store: Path, conf: str, namesrv: str, listen: str = "127.0.0.1:0"
) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Run ``rmq broker``, with files beside its store likewise; it may still be starting."""
    arguments = ("--namesrv", namesrv, "--listen", listen, *_settings(store, conf))
    return running(store.with_suffix(".log"), "broker", *arguments)


def _settings(store: Path, conf: str) -> list[str]:
    path = store.with_suffix(".conf")
    path.write_text(conf, encoding="utf-8")
    return ["--store", str(store), "-c", str(path)]


def free_ports(count: int) -> list[int]:
    """Find so many ports of this machine that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]
