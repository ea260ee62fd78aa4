"""The field guide names codes and commands that there are."""

import re
from pathlib import Path

from rmq_cli.main import COMMANDS
from rmq_offline.verify import finding_kinds

PAGE = (Path(__file__).parents[2] / "docs" / "field-guide.md").read_text()


def test_the_guides_codes_are_those_of_findings() -> None:
    areas = {kind.code.partition(".")[0] for kind in finding_kinds.ALL}
    named = {code for code in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PAGE) if code.partition(".")[0] in areas}
    assert named
    assert named - {kind.code for kind in finding_kinds.ALL} == set()


def test_the_guides_commands_are_there() -> None:
    named = set(re.findall(r"\brmq ([a-z]+)", PAGE))
    assert {"doctor", "verify", "offsets", "checkpoint"} <= named <= COMMANDS.keys() | {"admin"}
