"""Has the original play the scripts of many stores' lives, in one process of Java's."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.interop import peer

_THREADS: Final = 64  # a store that closes sleeps for seconds
_TIMEOUT_S: Final = 600


class LifePlayer:
    """Process of Java's that plays scripts; a context manager."""

    def __enter__(self) -> "LifePlayer":
        """Start the process of the release that ``peer.version`` names."""
        peer.build()
        environment = {**os.environ, "PEER_JAVA_OPTS": peer.QUICK_START}
        self._process = subprocess.Popen(
            ["bash", peer.SCRIPT, "lives", str(_THREADS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait(_TIMEOUT_S)

    def play(self, scripts: Mapping[str, Sequence[str]], work: Path) -> dict[str, str]:
        """Play scripts, many at a time.

        Args:
            scripts: lines of each script by its name.
            work: directory for the scripts' files.

        Returns:
            The answer to each: ``ok``, or Java's error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for name, lines in scripts.items():
            path = work / f"{name}.script"
            path.write_text("\n".join(lines), encoding="utf-8")
            self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answers = {}
        for _ in scripts:
            line = self._process.stdout.readline()
            assert line, "Java ended"
            path_text, _, answer = line.rstrip("\n").partition("\t")
            answers[Path(path_text).name.removesuffix(".script")] = answer
        return answers
