"""Users and policies by ``rmq admin``, at a broker that knows its users."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rmq_cli.main import app
from tests.cli.conftest import one_line
from tests.support.processes.broker_processes import Standalone, standalone

SETTINGS = """mappedFileSizeCommitLog=1048576
diskMaxUsedSpaceRatio=99
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={"username":"admin","password":"s3cret of admin"}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Standalone]]:
    """Two brokers, each with a name server of its own."""
    directory = tmp_path_factory.mktemp("users")
    (directory / "broker.conf").write_text(SETTINGS)
    arguments = "-c", str(directory / "broker.conf")
    with (
        standalone(directory / "a", *arguments, log=directory / "a.log") as first,
        standalone(directory / "b", *arguments, log=directory / "b.log") as second,
    ):
        yield [first, second]
    assert not any("s3cret" in (directory / name).read_text() for name in ("a.log", "b.log"))


def run(at: Standalone, command: str, *arguments: str, lines: str = "", secret: str = "s3cret of admin") -> Result:
    environ = {"RMQ_ACCESS_KEY": "admin", "RMQ_SECRET_KEY": secret, "COLUMNS": "200"}
    given = ["admin", command, "-n", at.namesrv, *arguments]
    done = CliRunner(env=environ).invoke(app, given, input=lines)
    assert "s3cret" not in done.output
    return done


def rows(at: Standalone, command: str, *arguments: str, lines: str = "", code: int = 0) -> list[dict[str, Any]]:
    done = run(at, command, *arguments, "--json", lines=lines)
    assert done.exit_code == code, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_users_are_made_listed_changed_copied_and_deleted(guarded: list[Standalone]) -> None:
    first, second = guarded
    made = rows(first, "createUser", "-u", "alice", lines="s3cret of alice\n")
    assert made == [{"broker": first.broker, "user": "alice"}]
    rows(first, "createUser", "-u", "bob", "-p", "s3cret of bob", "-t", "Super", "-b", first.broker)
    found = [(row["user"], row["type"], row["status"]) for row in rows(first, "listUser") if row["user"] != "carol"]
    assert found == [("admin", "Super", "enable"), ("alice", "Normal", "enable"), ("bob", "Super", "enable")]
    rows(first, "updateUser", "-u", "bob", "-s", "disable", "-t", "Normal")
    assert rows(first, "getUser", "-u", "bob")[0]["status"] == "disable"
    assert [row["user"] for row in rows(first, "copyUser", "-f", first.broker, "-t", second.broker, "-u", "alice,bob")]
    rows(first, "copyUser", "-f", first.broker, "-t", second.broker)  # they are there
    assert [row["user"] for row in rows(second, "listUser", "-f", "b")] == ["bob"]
    rows(first, "deleteUser", "-u", "bob", "-b", first.broker)
    assert rows(first, "getUser", "-u", "bob", code=1) == []


def test_policies_are_made_listed_changed_copied_and_deleted(guarded: list[Standalone]) -> None:
    first, second = guarded
    for at in guarded:
        rows(at, "createUser", "-u", "carol", lines="s3cret of carol\n")
        assert "user admin: request 3001 of carol" in at.errors.read_text()
    of_carol = "-s", "User:carol"
    rows(first, "createAcl", *of_carol, "-r", "Topic:Orders*,Group:g", "-a", "Pub,sub", "-d", "allow")
    rows(first, "updateAcl", *of_carol, "-r", "Group:g", "-a", "Sub", "-d", "Deny", "-i", "10.0.0.0/8")
    found = [
        (row["policy"], row["resource"], row["actions"], row["source_ips"], row["decision"])
        for row in rows(first, "getAcl", *of_carol)
    ]
    assert found == [
        ("Custom", "Topic:Orders*", "Pub,Sub", "", "Allow"),
        ("Custom", "Group:g", "Sub", "10.0.0.0/8", "Deny"),
    ]
    assert len(rows(first, "listAcl", "-s", "carol", "-r", "Orders")) == 2
    rows(first, "copyAcl", "-f", first.broker, "-t", second.broker, *of_carol)
    assert len(rows(second, "getAcl", *of_carol)) == 2
    rows(first, "deleteAcl", *of_carol, "-r", "Group:g", "-b", first.broker)
    assert [row["resource"] for row in rows(first, "listAcl", "-s", "carol")] == ["Topic:Orders*"]
    rows(first, "deleteAcl", *of_carol, "-b", first.broker)
    assert rows(first, "getAcl", *of_carol, code=1) == []


@pytest.mark.parametrize(("arguments", "words"), [
    (("createUser", "-u", "admin", "-p", "x"), "The user is existed"),
    (("createUser", "-u", "dora"), "password is empty"),
    (("updateUser", "-u", "admin"), "say what is to change"), (("deleteUser", "-u", "admin"), "give -b or -c"),
    (("createAcl", "-s", "User:admin", "-r", "Thing:a", "-a", "Pub", "-d", "Allow"), "The resource is null"),
    (("createAcl", "-s", "User:none", "-r", "*", "-a", "Pub", "-d", "Allow"), "is not exist"),
    (("getAcl", "-s", "admin"), "The subject is null"),
])  # fmt: skip
def test_an_impossible_request_is_reported_in_one_line(
    guarded: list[Standalone], arguments: tuple[str, ...], words: str
) -> None:
    done = run(guarded[0], *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in one_line(done.stderr)


def test_a_wrong_secret_reveals_nothing(guarded: list[Standalone]) -> None:
    done = run(guarded[0], "listUser", secret="wrong")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "check signature failed" in one_line(done.stderr)
