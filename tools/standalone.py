"""``rmq standalone`` as a process, for the demo and the benchmarks."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Standalone:
    """A name server and a broker that serve.

    Attributes:
        pid: of their process.
        namesrv: ``host:port`` of the name server.
        broker: of the broker.
    """

    pid: int
    namesrv: str
    broker: str


@contextmanager
def standalone(store: Path, conf: str) -> Iterator[Standalone]:
    """Run it on free ports; ended by SIGTERM. Settings and log are files beside the store.

    Args:
        store: its directory, made where it is not there.
        conf: ``broker.conf`` properties.

    Raises:
        RuntimeError: it did not start; the log's words.
    """
    conf_path, log_path = store.with_suffix(".conf"), store.with_suffix(".log")
    conf_path.write_text(conf, encoding="utf-8")
    command = [
        str(Path(sys.executable).parent / "rmq"), "standalone", "--store", str(store), "--listen", "127.0.0.1:0",
        "--broker-listen", "127.0.0.1:0", "-c", str(conf_path),
    ]  # fmt: skip
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        told = process.stdout.readline()  # "name server HOST:PORT, broker HOST:PORT"
        if not told:
            raise RuntimeError(f"rmq standalone did not start: {log_path.read_text().strip()}")
        namesrv, broker = (part.split()[-1] for part in told.split(","))
        yield Standalone(process.pid, namesrv, broker)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
