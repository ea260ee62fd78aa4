"""``README.md``: each of its blocks runs as printed, in the page's order, and gives the printed output."""

import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import BLOCK, ROOT, Reader

PAGE = (ROOT / "README.md").read_text("utf-8")
BLOCKS = BLOCK.findall(PAGE)
SERVER = re.compile(r"^rmq standalone .*&.*$", re.MULTILINE)


def section(title: str) -> list[tuple[str, str]]:
    """The blocks of one section: language and text of each."""
    body = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return BLOCK.findall(body)


@pytest.fixture
def broker(reader: Reader) -> Iterator[Reader]:
    """A reader beside the broker that the page starts, at ports of its own."""
    (line,) = SERVER.findall(PAGE)
    with reader.serve(line, "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0") as output:
        ready = next(filter(None, (re.match(r"name server (127\.0\.0\.1:\d+), broker", printed) for printed in output)))
        reader.places = {line: "true", "127.0.0.1:9876": ready[1], **reader.places}
        reader.environment |= {"NAMESRV_ADDR": ready[1]}
        yield reader


def test_the_page_is_short_and_has_known_languages() -> None:
    assert len(PAGE.splitlines()) <= 150
    assert {language for language, _ in BLOCKS} == {"sh", "python", "text"}
    assert len(BLOCKS) == PAGE.count("\n```") / 2


@pytest.mark.long
def test_an_operator_gets_what_is_printed(reader: Reader) -> None:
    reader.run_blocks(section("Operate a store"))
    assert (reader.directory / "shop.html").is_file()


@pytest.mark.spark
@pytest.mark.long
def test_an_analyst_and_an_engineer_get_what_is_printed(reader: Reader) -> None:
    for _, text in section("Operate a store")[:1]:
        reader.run("sh", text)
    reader.run_blocks(section("Ask old messages"))
    reader.run_blocks(section("Land logs in a lakehouse"))
    assert (reader.directory / "restored" / "commitlog").is_dir()


@pytest.mark.long
def test_a_developer_gets_what_is_printed(broker: Reader) -> None:
    broker.run_blocks(section("Run a broker, write clients"))


def test_the_page_installs_what_is_there() -> None:
    ((language, text),) = section("Install")
    assert language == "sh"
    assert "'.[spark,delta]'" in text
    assert "\nspark = [" in (ROOT / "pyproject.toml").read_text("utf-8")
