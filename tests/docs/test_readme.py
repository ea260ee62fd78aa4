"""``README.md``: each of its blocks runs as printed, in the page's order, and gives the printed output."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SERVER = re.compile(r"^rmq standalone .*&.*$", re.MULTILINE)


def section(title: str) -> list[tuple[str, str]]:
    """The blocks of one section: language and text of each."""
    body = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)


def words(text: str) -> str:
    """Text without its figures, units of speed, marks of tables and white space, which differ from run to run."""
    text = re.sub(r"[kMG]B/s", "B/s", re.sub(r"[─│┌┐└┘├┤┼┬┴]+", " ", text))
    return " ".join(re.sub(r"\d[\d,.]*", "0", text).split())


class Reader:
    """Runs blocks as somebody who reads the page does, in places of the test's own.

    Attributes:
        places: texts of the page and what stands for them here.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.places = {"/tmp/": f"{directory}/"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            "PATH": path,
            "COLUMNS": "300",
        }  # the test's paths are long, and are not folded

    def run(self, language: str, text: str) -> str:
        """Run a block and return what it prints to stdout, with the page's names for places."""
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
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
        for name, place in self.places.items():
            printed = printed.replace(place, name)
        return printed

    def run_section(self, title: str) -> None:
        """Run a section's blocks; a block of text has the output of the block before it."""
        printed = ""
        for language, text in section(title):
            if language == "text":
                assert words(text) in words(printed)
            else:
                printed = self.run(language, text)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.fixture
def broker(reader: Reader) -> Iterator[Reader]:
    """A reader beside the broker that the page starts, at ports of its own."""
    (line,) = SERVER.findall(PAGE)
    command = line.partition("&")[0].replace("/tmp/", f"{reader.directory}/").split()
    server = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"],
        env=reader.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        ready = re.match(r"name server (127\.0\.0\.1:\d+), broker", server.stdout.readline())
        assert ready
        reader.places = {line: "true", "127.0.0.1:9876": ready[1], **reader.places}
        reader.environment |= {"NAMESRV_ADDR": ready[1]}
        yield reader
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


def test_the_page_is_short_and_has_known_languages() -> None:
    assert len(PAGE.splitlines()) <= 150
    assert {language for language, _ in BLOCKS} == {"sh", "python", "text"}
    assert len(BLOCKS) == PAGE.count("\n```") / 2


@pytest.mark.long
def test_an_operator_gets_what_is_printed(reader: Reader) -> None:
    reader.run_section("Operate a store")
    assert (reader.directory / "shop.html").is_file()


@pytest.mark.spark
def test_an_analyst_and_an_engineer_get_what_is_printed(reader: Reader) -> None:
    for _, text in section("Operate a store")[:1]:
        reader.run("sh", text)
    reader.run_section("Ask old messages")
    reader.run_section("Land logs in a lakehouse")
    assert (reader.directory / "restored" / "commitlog").is_dir()


@pytest.mark.long
def test_a_developer_gets_what_is_printed(broker: Reader) -> None:
    broker.run_section("Run a broker, write clients")


def test_the_page_installs_what_is_there() -> None:
    ((language, text),) = section("Install")
    assert language == "sh"
    assert "'./[spark]'" in text
    assert "\nspark = [" in (ROOT / "pyproject.toml").read_text("utf-8")
