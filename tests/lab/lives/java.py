"""Has the original play the scripts of many stores' lives, in few processes of Java's."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Final

from tests.interop import peer
from tests.lab.lives.script import Life

_THREADS: Final = 64  # a store waits for its own threads most of the time
_TIMEOUT_S: Final = 60
_SHOWN_BYTES: Final = 2000  # of what Java prints before it dies


class LifePlayer:
    """Process of Java's that plays scripts; a context manager."""

    def __init__(self, threads: int = _THREADS) -> None:
        """Create the player of the release that ``peer.version`` names; ``threads`` scripts are played at a time."""
        self._threads = threads

    def __enter__(self) -> "LifePlayer":
        """Start the process."""
        peer.build()
        environment = {**os.environ, "PEER_JAVA_OPTS": peer.QUICK_START}
        self._errors = TemporaryFile()
        self._process = subprocess.Popen(
            ["bash", peer.SCRIPT, "lives", str(self._threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process: what it played is closed, or of no use."""
        self._process.kill()
        self._process.communicate(timeout=_TIMEOUT_S)
        self._errors.close()

    def start(self, scripts: Mapping[str, Sequence[str]], work: Path) -> None:
        """Start to play scripts.

        Args:
            scripts: lines of each script by its name.
            work: directory for the scripts' files.
        """
        assert self._process.stdin is not None
        for name, lines in scripts.items():
            path = work / f"{name}.script"
            path.write_text("\n".join(lines), encoding="utf-8")
            self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def finish(self, count: int) -> dict[str, str]:
        """Wait until so many scripts have been played; return the answer to each: ``ok``, or Java's error."""
        assert self._process.stdout is not None
        answers: dict[str, str] = {}
        for _ in range(count):
            line = self._process.stdout.readline()
            path_text, tab, answer = line.rstrip("\n").partition("\t")
            assert tab, f"Java ended: {line}{self._last_errors()}"
            answers[Path(path_text).name.removesuffix(".script")] = answer
        return answers

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

    def __enter__(self) -> "LifePlayers":
        """Start no process: the first lives do."""
        self._stack = ExitStack()
        self._together: LifePlayer | None = None
        self._in_turn: LifePlayer | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the processes."""
        self._stack.close()

    def play(self, lives: Mapping[str, Life], work: Path) -> dict[str, str]:
        """Play lives by their names; and return the answer to each: ``ok``, or Java's error."""
        in_turn = {name for name, life in lives.items() if life.has_rocksdb and peer.is_from_5_4()}
        started = []
        if in_turn:
            self._in_turn = self._in_turn or self._stack.enter_context(LifePlayer(threads=1))
            started.append((self._in_turn, in_turn))
        if len(in_turn) < len(lives):
            self._together = self._together or self._stack.enter_context(LifePlayer())
            started.append((self._together, lives.keys() - in_turn))
        for player, names in started:
            player.start({name: life.lines for name, life in lives.items() if name in names}, work)
        answers: dict[str, str] = {}
        for player, names in started:
            answers |= player.finish(len(names))
        return answers
