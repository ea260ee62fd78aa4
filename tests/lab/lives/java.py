"""Has the original play the scripts of many stores' lives, in few processes of Java's."""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Final

from tests.interop import peer
from tests.lab.lives.script import Life

_THREADS: Final = 16  # a store waits for its own threads most of the time, and each open one wakes up every millisecond
_TIMEOUT_S: Final = 60
_SHOWN_BYTES: Final = 2000  # of what Java prints before it dies


class LifePlayer:
    """Process of Java's that plays scripts; a context manager."""

    def __init__(self, threads: int) -> None:
        """Create the player of the release that ``peer.version`` names; ``threads`` scripts are played at a time."""
        self._threads = threads
        self._answers: dict[str, str] = {}

    def __enter__(self) -> "LifePlayer":
        """Start the process."""
        peer.build()
        environment = {**os.environ, "PEER_JAVA_OPTS": peer.QUICK_START}
        self._errors = TemporaryFile()
        self._process = subprocess.Popen(
            ["bash", peer.SCRIPT, "lives", str(self._threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process: what it played is closed, or of no use."""
        self._process.kill()
        self._process.communicate(timeout=_TIMEOUT_S)
        self._errors.close()

    def start(self, path: Path) -> None:
        """Start to play the script in a file."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def wait(self, path: Path) -> str:
        """Wait until the script in a file has been played; return the answer to it: ``ok``, or Java's error."""
        assert self._process.stdout is not None
        while str(path) not in self._answers:
            line = self._process.stdout.readline()
            path_text, tab, answer = line.rstrip("\n").partition("\t")
            assert tab, f"Java ended: {line}{self._last_errors()}"
            self._answers[path_text] = answer
        return self._answers.pop(str(path))

    def _last_errors(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _SHOWN_BYTES))
        return self._errors.read().decode(errors="replace")


class LifePlayers:
    """Processes of Java's for the lives of a round; a context manager.

    From 5.4 on lives with RocksDB are played one after the other in a process of their own: all queue databases of a
    JVM share one native compaction filter, and the first store that closes destroys it (``CqCompactionFilterJni``), so
    that the JVM dies of SIGSEGV.
    """

    def __init__(self, work: Path) -> None:
        """Create the players; ``work`` is the directory of the scripts' files."""
        self._work = work

    def __enter__(self) -> "LifePlayers":
        """Start no process: the first lives do."""
        self._stack = ExitStack()
        self._players: dict[int, LifePlayer] = {}  # by threads
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the processes."""
        self._stack.close()

    def start(self, name: str, life: Life) -> None:
        """Start to play the script of a life."""
        path = self._path(name)
        path.write_text("\n".join(life.lines), encoding="utf-8")
        self._player(life).start(path)

    def wait(self, name: str, life: Life) -> str:
        """Wait until a life has been played; return the answer to it: ``ok``, or Java's error."""
        return self._player(life).wait(self._path(name))

    def _player(self, life: Life) -> LifePlayer:
        threads = 1 if life.has_rocksdb and peer.is_from_5_4() else _THREADS
        if threads not in self._players:
            self._players[threads] = self._stack.enter_context(LifePlayer(threads))
        return self._players[threads]

    def _path(self, name: str) -> Path:
        return self._work / f"{name}.script"
