"""``docs/start``: each block of the pages of ten minutes runs as printed, and gives the printed output."""

import re

import pytest

from tests.docs.pages import BLOCK, ROOT, Reader

PAGES = {page.stem: BLOCK.findall(page.read_text("utf-8")) for page in (ROOT / "docs" / "start").glob("*.md")}


def test_there_is_one_page_for_each_road() -> None:
    assert PAGES.keys() == {"operate", "ask", "lakehouse", "broker"}


@pytest.mark.long
def test_a_store_is_verified_damaged_and_repaired(reader: Reader) -> None:
    reader.run_blocks(PAGES["operate"], exit_codes=(0, 1))
    assert (reader.directory / "shop.html").is_file()


@pytest.mark.spark
@pytest.mark.long
def test_old_messages_are_found_and_counted(reader: Reader) -> None:
    reader.run_blocks(PAGES["ask"])


@pytest.mark.spark
@pytest.mark.long
def test_a_store_becomes_a_table_and_a_store_again(reader: Reader) -> None:
    reader.run_blocks(PAGES["lakehouse"])


@pytest.mark.long
def test_a_broker_serves_the_command_line_and_python(reader: Reader) -> None:
    (_, command), *blocks = PAGES["broker"]
    pattern = re.compile(r"name server (127\.0\.0\.1:\d+), broker (127\.0\.0\.1:\d+)")
    with reader.serve(command, "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0") as output:
        ready = next(filter(None, map(pattern.match, output)))
        reader.places |= {"127.0.0.1:9876": ready[1], "127.0.0.1:10911": ready[2]}
        reader.environment |= {"NAMESRV_ADDR": ready[1]}
        reader.run_blocks(blocks[1:], exit_codes=(0, 1))
