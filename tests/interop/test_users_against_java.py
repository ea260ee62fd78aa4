"""Users and policies at our broker: mqadmin makes them, and Java's clients are let in by them, or not."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES
from tests.support.processes.broker_processes import PATIENT, Standalone, standalone

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("users_against_java")]
SETTINGS = f"""{SMALL_FILES}authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={{"username":"admin","password":"admin1234"}}
innerClientAuthenticationCredentials={{"accessKey":"inner","secretKey":"inner1234"}}
"""


@dataclass(frozen=True)
class Guarded:
    """Two of our brokers that know their users.

    Attributes:
        first: one.
        second: the other, of a cluster of its own.
        homes: for each user a directory that Java looks for credentials in.
    """

    first: Standalone
    second: Standalone
    homes: Path

    def mqadmin(self, user: str, command: str, *arguments: str, namesrv: str | None = None) -> str:
        """Run a command as a user."""
        where = "-n", namesrv or self.first.namesrv
        return peer.command(command, *where, *arguments, java_options=f"-Drocketmq.home.dir={self.homes / user}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Both, without other users yet than admin."""
    peer.build()
    directory = tmp_path_factory.mktemp("users")
    (directory / "broker.conf").write_text(PATIENT + SETTINGS)
    for home, user in (("admin", "admin"), ("alice", "alice"), ("again", "alice")):
        conf = directory / home / "conf"
        conf.mkdir(parents=True)
        (conf / "tools.yml").write_text(f"accessKey: {user}\nsecretKey: {user}1234\n")
    (directory / "nobody" / "conf").mkdir(parents=True)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                standalone(directory / name, "-c", str(directory / "broker.conf"), log=directory / f"{name}.log")
            )
            for name in ("first", "second")
        )
        yield Guarded(first, second, directory)


def test_mqadmin_makes_lists_changes_copies_and_deletes_users_and_policies(guarded: Guarded) -> None:
    at = "-b", guarded.first.broker
    made = guarded.mqadmin("admin", "createUser", *at, "-u", "alice", "-p", "alice1234")
    assert "success" in made, made
    assert "The user is existed" in guarded.mqadmin("admin", "createUser", *at, "-u", "alice", "-p", "x1234567")
    assert "success" in guarded.mqadmin("admin", "createUser", *at, "-u", "root2", "-p", "root1234", "-t", "Super")
    listed = guarded.mqadmin("admin", "listUser", *at)
    assert re.search(r"alice +alice1234 +Normal +enable", listed), listed
    assert re.search(r"root2 +root1234 +Super +enable", listed), listed
    assert "success" in guarded.mqadmin("admin", "updateUser", *at, "-u", "root2", "-s", "disable")
    assert re.search(r"root2 .*Super +disable", guarded.mqadmin("admin", "getUser", *at, "-u", "root2"))
    of_alice = "-s", "User:alice", "-r", "Topic:Told*,Group:readers", "-a", "Pub,Sub", "-d", "Allow"
    assert "success" in guarded.mqadmin("admin", "createAcl", *at, *of_alice)
    shown = guarded.mqadmin("admin", "getAcl", *at, "-s", "User:alice")
    assert re.search(r"User:alice +Custom +Topic:Told\* .*Pub.*Sub.*Allow", shown), shown
    denied = "-s", "User:alice", "-r", "Group:readers", "-a", "Sub", "-d", "Deny", "-i", "10.0.0.0/8"
    assert "success" in guarded.mqadmin("admin", "updateAcl", *at, *denied)
    listed = guarded.mqadmin("admin", "listAcl", *at)
    assert re.search(r"Group:readers .*Sub.*10\.0\.0\.0/8.*Deny", listed), listed
    both = "-f", guarded.first.broker, "-t", guarded.second.broker
    assert "success" in guarded.mqadmin("admin", "copyUser", *both, "-u", "alice")
    assert "success" in guarded.mqadmin("admin", "copyAcl", *both, "-s", "User:alice")
    copied = guarded.mqadmin("admin", "getAcl", "-b", guarded.second.broker, "-s", "User:alice")
    assert re.search(r"User:alice +Custom +Topic:Told\* ", copied), copied
    assert "success" in guarded.mqadmin("admin", "deleteAcl", *at, "-s", "User:alice", "-r", "Group:readers")
    assert "Group:readers" not in guarded.mqadmin("admin", "getAcl", *at, "-s", "User:alice")
    assert "success" in guarded.mqadmin("admin", "deleteUser", *at, "-u", "root2")
    assert "root2" not in guarded.mqadmin("admin", "listUser", *at)


@pytest.mark.long
def test_users_may_what_their_policies_say(guarded: Guarded) -> None:
    at = "-b", guarded.second.broker
    guarded.mqadmin("admin", "createUser", *at, "-u", "alice", "-p", "alice1234")
    guarded.mqadmin("admin", "createAcl", *at, "-s", "User:alice", "-r", "Topic:Told*", "-a", "Pub,Get", "-d", "Allow")
    where = guarded.second.namesrv
    for topic in ("Told", "Other"):
        guarded.mqadmin("admin", "updateTopic", *at, "-t", topic, "-w", "1", "-r", "1", namesrv=where)
    sent = guarded.mqadmin("alice", "sendMessage", "-t", "Told", "-p", "hello", namesrv=where)
    assert "SEND_OK" in sent, sent
    # (A process of mqadmin can send once.)
    refused = guarded.mqadmin("again", "sendMessage", "-t", "Other", "-p", "hello", namesrv=where)
    assert "User:alice has no permission to access Topic:Other from 127.0.0.1, no matched policies." in refused, refused
    stranger = guarded.mqadmin("nobody", "sendMessage", "-t", "Told", "-p", "hello", namesrv=where)
    assert "username cannot be null." in stranger, stranger
    assert "no permission" in guarded.mqadmin("alice", "getBrokerConfig", *at, namesrv=where)
