"""``docs/admin.md`` has what there is."""

import re
from pathlib import Path

import typer.main

from rmq_core.cli.admin import COMMANDS, app

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
METRICS = Path(__file__).parents[2] / "rmq_core" / "broker" / "metrics.py"


def test_each_command_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-zA-Z]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(COMMANDS)


def test_each_metric_is_in_the_table() -> None:
    told = set(re.findall(r"`(rocketmq_[a-z_]+)`", PAGE.read_text()))
    made = set(re.findall(r'"(rocketmq_[a-z_]+)"', METRICS.read_text()))
    assert told == made


def test_no_letter_means_two_things() -> None:
    commands = typer.main.get_group(app).commands
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        options = [option for one in command.params for option in one.opts]
        assert len(options) == len(set(options)), name
        assert {"-n", "--json"} <= set(options)
