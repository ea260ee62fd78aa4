"""A running ``rmq standalone``, and ``rmq admin`` on it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rmq_cli.main import app
from tests.cli.conftest import one_line
from tests.support.processes.broker_processes import configured

BROKER = "admin-a"
SETTINGS = f"brokerName={BROKER}\nmappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\ntraceTopicEnable=true\n"


@dataclass(frozen=True)
class Cluster:
    """A cluster, and commands on it.

    Attributes:
        namesrv: its name server's address.
        broker: its broker's.
    """

    namesrv: str
    broker: str

    def text(self, *arguments: str, code: int = 0) -> str:
        """What a command prints for people."""
        return self._run(*arguments, code=code).stdout

    def rows(self, *arguments: str, code: int | None = 0) -> list[dict[str, Any]]:
        """What a command prints for programs; with None any exit code will do."""
        done = self._run(*arguments, "--json", code=code)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def error(self, *arguments: str) -> str:
        """The one line of a command that cannot run."""
        done = self._run(*arguments, code=2)
        assert done.stdout == ""
        return one_line(done.stderr)

    def send(self, topic: str, *bodies: str, tags: str = "A", keys: str = "k") -> list[dict[str, Any]]:
        """Send messages to a topic's first queue, which is made here if need be; what came of each."""
        self.rows("updateTopic", "-t", topic, "-r", "2", "-w", "2")
        place = "-t", topic, "-b", BROKER, "-i", "0", "-c", tags, "-k", keys
        return [one for body in bodies for one in self.rows("sendMessage", *place, "-p", body)]

    def consume(self, topic: str, group: str, count: int) -> None:
        """Consume so many messages as a member of a group, which then leaves."""
        command = ["consume", "--namesrv", self.namesrv, "--topic", topic, "--group", group, "--from", "first"]
        done = CliRunner().invoke(app, [*command, "--limit", str(count)])
        assert done.exit_code == 0, done.output

    def _run(self, command: str, *arguments: str, code: int | None) -> Result:
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["admin", command, "-n", self.namesrv, *arguments])
        assert code in (None, done.exit_code), done.output
        return done


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker, without a topic of a user's."""
    with configured(tmp_path_factory.mktemp("admin"), SETTINGS) as running:
        yield Cluster(running.namesrv, running.broker)
