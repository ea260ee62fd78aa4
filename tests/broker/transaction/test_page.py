"""The Python of docs/transactions.md runs, and what the page says of defaults is so."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.settings import java_name
from tests.broker.transaction.test_producer import Cluster
from tests.broker.transaction.test_producer import cluster as cluster  # noqa: PLC0414 # the fixture

PAGE = (Path(__file__).parents[3] / "docs" / "transactions.md").read_text()


async def test_its_program_runs(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program.count("127.0.0.1:9876") == 1
    names: dict[str, object] = {}
    exec(program.replace("127.0.0.1:9876", cluster.namesrv).replace("asyncio.run(main())", ""), names)
    await names["main"]()  # type: ignore[operator] # a coroutine function
    assert capsys.readouterr().out == "COMMIT True True\n"


def test_its_defaults_are_the_codes() -> None:
    settings = {java_name(one): one.default for one in fields(BrokerConfig)}
    for name, shown, scale in re.findall(r"`(transaction\w+)` \(([\d,]+)( s)?", PAGE):
        assert settings[name] == int(shown.replace(",", "")) * (1000 if scale else 1), name
    assert len(re.findall(r"`transaction\w+` \(", PAGE)) == 5
