"""The pages that say which test shows what name tests, modules and pages that are there, and say what is so."""

import re
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.client import ClientOptions, ProducerOptions, PushOptions

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text("utf-8") for name in ("coverage.md", "reliability.md")}
ROWS = [
    line.strip("| \n").split(" | ")
    for table in re.findall(r"\| statement \|.*\n\|.*\n((?:\|.*\n)+)", PAGES["coverage.md"])
    for line in table.splitlines()
]


@pytest.mark.parametrize("page", PAGES)
def test_each_test_that_it_names_is_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGES[page])
    assert named
    for path, function in named:
        text = (ROOT / path).read_text("utf-8")
        assert f"def {function or 'test_'}" in text, f"{path}::{function}"


@pytest.mark.parametrize("page", PAGES)
def test_each_page_that_it_names_is_there(page: str) -> None:
    for named in re.findall(r"\]\(([\w/-]+\.md)(?:#[\w-]+)?\)", PAGES[page]):
        assert (ROOT / "docs" / named).is_file(), named


def test_each_module_that_the_coverage_names_is_there() -> None:
    modules = re.findall(r"`(rmq_(?:core|formats)/[\w/]+\.py)`", PAGES["coverage.md"])
    assert len(modules) > 100
    assert [module for module in modules if not (ROOT / module).is_file()] == []


def test_each_row_of_the_coverage_states_a_behaviour_and_shows_it_or_says_why_not() -> None:
    assert len(ROWS) > 150
    for statement, where, shown_by in ROWS:
        assert statement.endswith("."), statement
        assert len(re.sub(r"`[^`]*`", "", statement).split()) >= 2, f"names a key alone: {statement}"
        assert where.startswith("["), statement
        if not re.match(r"(?:[\w' ,]+, )?`tests/", shown_by):
            assert re.fullmatch(r"not implemented: .{20,}", shown_by), statement
    statements = [statement for statement, *_ in ROWS]
    assert len(set(statements)) == len(statements)


@pytest.mark.parametrize(
    ("statement", "seconds"),
    [
        ("fetches it when it has none, and again every 30 s", ClientOptions().route_poll_interval_s),
        ("heartbeats to the masters of its topics, every 30 s", ProducerOptions().heartbeat_interval_s),
        ("heartbeats to masters and slaves: at its start, then every 30 s", PushOptions().heartbeat_interval_s),
        ("when a member comes or goes, and every 20 s", PushOptions().rebalance_interval_s),
        ("at its start and then every 30 s", BrokerConfig().register_name_server_period_ms / 1000),
        ("held for as long as it asks (our clients: 15 s", PushOptions().suspend_timeout_s),
    ],
)
def test_the_intervals_that_the_coverage_states_are_the_defaults(statement: str, seconds: float) -> None:
    assert statement in PAGES["coverage.md"]
    assert int(re.findall(r"(\d+) s", statement)[-1]) == seconds
