"""The file of users keeps no password that is none any more."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.broker.access.accounts import Accounts, AccountTable, User
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.remoting.bodies.configs import PolicyEntryInfo, PolicyInfo
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_formats.errors import StoreError


def loaded(store: Path) -> Accounts:
    return Accounts(TableFiles(str(store), Disk(), Threads()))


async def put(accounts: Accounts, name: str, password: str) -> None:
    await accounts.change(lambda table: table.put_user(name, User(password=password)))


def files_with(store: Path, secret: bytes) -> set[str]:
    return {file.name for file in store.rglob("*") if file.is_file() and secret in file.read_bytes()}


async def test_a_password_that_was_changed_or_whose_user_is_gone_is_in_no_file(tmp_path: Path) -> None:
    accounts = loaded(tmp_path)
    await put(accounts, "alice", "the-former")
    await put(accounts, "bob", "of-bob")
    assert files_with(tmp_path, b"the-former") == {"accounts.json", "accounts.json.bak"}
    await put(accounts, "alice", "the-new")
    assert files_with(tmp_path, b"the-former") == set()
    await accounts.change(lambda table: table.remove_user("bob"))
    assert files_with(tmp_path, b"of-bob") == set()
    assert loaded(tmp_path).users["alice"].password == "the-new"


async def test_what_a_killed_change_has_left_is_gone_after_the_next_start_and_the_copy_restores(tmp_path: Path) -> None:
    await put(loaded(tmp_path), "alice", "the-present")
    file = next(tmp_path.rglob("accounts.json"))
    for left in ("accounts.json.bak", "accounts.json.new", "accounts.json.bak.new"):
        file.with_name(left).write_bytes(file.read_bytes().replace(b"the-present", b"another"))
    loaded(tmp_path)
    assert files_with(tmp_path, b"another") == set()
    file.unlink()
    with pytest.raises(StoreError, match=r"Restore the \.bak, or delete it"):
        loaded(tmp_path)
    file.with_name("accounts.json.bak").rename(file)
    assert loaded(tmp_path).users["alice"].password == "the-present"


class FullDisk(Disk):
    """A disk that may be full for files of a name."""

    full_for = ""

    def replace(self, path: str, data: bytes) -> None:
        if self.full_for and path.endswith(self.full_for):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().replace(path, data)


@pytest.mark.parametrize("full_for", ["accounts.json.bak", "accounts.json"])
async def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path, full_for: str) -> None:
    disk = FullDisk()
    accounts = Accounts(TableFiles(str(tmp_path), disk, Threads()))
    await put(accounts, "alice", "the-present")
    disk.full_for = full_for
    entry = PolicyEntryInfo(actions=["Pub"], decision="Allow", resource="Topic:Secret")
    changes: list[Callable[[AccountTable], object]] = [
        lambda table: table.put_user("carol", User(password="p")),
        lambda table: table.put_user("alice", User(password="another")),
        lambda table: table.remove_user("alice"),
        lambda table: table.put_policies("alice", [PolicyInfo(entries=[entry])]),
    ]
    for change in changes:
        with pytest.raises(ResponseError, match="cannot be written: No space left"):
            await accounts.change(change)  # type: ignore[arg-type] # what it returns is of no interest
        assert (accounts.users, accounts.policies("alice")) == ({"alice": User(password="the-present")}, ())
    assert (loaded(tmp_path).users, loaded(tmp_path).table.acls) == (accounts.users, {})
    disk.full_for = ""
    await accounts.change(changes[3])  # type: ignore[arg-type]
    assert loaded(tmp_path).table == accounts.table
    assert list(accounts.users) == ["alice"]


async def test_changes_wait_for_one_another_and_one_whose_asker_leaves_is_made(tmp_path: Path) -> None:
    files = TableFiles(str(tmp_path), Disk(), Threads())
    accounts = Accounts(files)
    files.start()
    asked = [asyncio.ensure_future(put(accounts, f"user{number}", "p")) for number in range(20)]
    await asyncio.sleep(0)
    asked[0].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await files.close()
    assert (len(accounts.users), accounts.version) == (20, 20)
    assert loaded(tmp_path).users == accounts.users
