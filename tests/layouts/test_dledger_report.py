"""Reports about a store with a DLedger CommitLog say so."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Rmq
from tests.cli.conftest import rmq as rmq  # noqa: PLC0414 # the fixture


def test_verify_and_repair_name_the_layout(golden: Callable[[str], Path], rmq: Rmq) -> None:
    store = golden("dledger") / "store"
    for command in (["verify", store], ["repair", store, "--plan"]):
        assert "DLedger CommitLog" in json.loads(rmq(*command, "--json").stdout)["layouts"]
        (line,) = [line for line in rmq(*command).stdout.splitlines() if line.startswith("layout")]
        assert "DLedger CommitLog" in line
    plain = golden("mixed") / "store"
    assert json.loads(rmq("verify", plain, "--json").stdout)["layouts"] == []
