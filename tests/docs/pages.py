"""Blocks of a page, and a reader who runs them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def words(text: str) -> str:
    """Text without its figures, units of speed, marks of tables and white space, which differ from run to run."""
    text = re.sub(r"[kMG]B/s", "B/s", re.sub(r"[─│┌┐└┘├┤┼┬┴]+", " ", text))
    return " ".join(re.sub(r"\d[\d,.]*", "0", text).split())


class Reader:
    """Runs blocks as somebody who reads the page does, with directories and addresses of the test's own.

    Attributes:
        places: texts of the page, and the text that a command gets instead.
        environment: variables of the commands; ``columns`` is the width of their tables.
    """

    def __init__(self, directory: Path, columns: int = 120) -> None:
        self.directory = directory
        self.places = {"/tmp/": f"{directory}/"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "COLUMNS": str(columns)}

    @contextmanager
    def serve(self, command: str, *options: str) -> Iterator[IO[str]]:
        """Start the server of a command line that ends with ``&``, yield its output, and stop it."""
        text = command.partition("&")[0]
        for name, place in self.places.items():
            text = text.replace(name, place)
        process = subprocess.Popen(
            [*text.split(), *options], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)

    def run(self, language: str, text: str, exit_codes: tuple[int, ...] = (0,)) -> str:
        """Run a block and return its stdout with the page's own directories and addresses."""
        for name, place in self.places.items():
            text = text.replace(name, place)
        command = ["bash", "-euo", "pipefail", "-c", text]
        if language == "python":
            program = self.directory / "block.py"
            program.write_text(text, "utf-8")
            command = [sys.executable, str(program)]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode in exit_codes, f"{text}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
        for name, place in self.places.items():
            printed = printed.replace(place, name)
        return printed

    def run_blocks(self, blocks: list[tuple[str, str]], exit_codes: tuple[int, ...] = (0,)) -> None:
        """Run blocks in order; a block of text is the output of the block before it, and … stands for any lines."""
        printed = ""
        for language, text in blocks:
            if language == "text":
                for part in text.split("…\n"):
                    assert words(part) in words(printed), f"{part}\nis not in\n{printed}"
            else:
                printed = self.run(language, text, exit_codes)
