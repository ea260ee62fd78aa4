"""``docs/admin.md`` has what there is."""

import re
from pathlib import Path

from rmq_core.cli.admin import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
METRICS = Path(__file__).parents[2] / "rmq_core" / "broker" / "metrics.py"


def test_each_command_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-zA-Z]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(COMMANDS)


def test_each_metric_is_in_the_table() -> None:
    told = set(re.findall(r"`(rocketmq_[a-z_]+)`", PAGE.read_text()))
    made = set(re.findall(r'"(rocketmq_[a-z_]+)"', METRICS.read_text()))
    assert told == made
