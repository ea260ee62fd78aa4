"""The file of users keeps no password that is none any more."""

from pathlib import Path

import pytest

from rmq_core.broker.access.accounts import Accounts, User
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_formats.errors import StoreError


def loaded(store: Path) -> Accounts:
    return Accounts(TableFiles(str(store), Disk(), Threads()))


def files_with(store: Path, secret: bytes) -> set[str]:
    return {file.name for file in store.rglob("*") if file.is_file() and secret in file.read_bytes()}


def test_a_password_that_was_changed_or_whose_user_is_gone_is_in_no_file(tmp_path: Path) -> None:
    accounts = loaded(tmp_path)
    accounts.put_user("alice", User(password="the-former"))
    accounts.put_user("bob", User(password="of-bob"))
    assert files_with(tmp_path, b"the-former") == {"accounts.json", "accounts.json.bak"}
    accounts.put_user("alice", User(password="the-new"))
    assert files_with(tmp_path, b"the-former") == set()
    accounts.remove_user("bob")
    assert files_with(tmp_path, b"of-bob") == set()
    assert loaded(tmp_path).users["alice"].password == "the-new"


def test_what_a_killed_change_has_left_is_gone_after_the_next_start_and_the_copy_restores(tmp_path: Path) -> None:
    loaded(tmp_path).put_user("alice", User(password="the-present"))
    file = next(tmp_path.rglob("accounts.json"))
    for left in ("accounts.json.bak", "accounts.json.new", "accounts.json.bak.new"):
        file.with_name(left).write_bytes(file.read_bytes().replace(b"the-present", b"another"))
    loaded(tmp_path)
    assert files_with(tmp_path, b"another") == set()
    file.unlink()
    with pytest.raises(StoreError, match=r"copy its \.bak over it"):
        loaded(tmp_path)
    file.with_name("accounts.json.bak").rename(file)
    assert loaded(tmp_path).users["alice"].password == "the-present"
