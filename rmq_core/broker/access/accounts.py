"""Users of a broker and their policies, in ``config/access/accounts.json``, readable by its owner only.

Signatures require the password itself, so that the file has passwords in plain text. The original has the same data in
two RocksDB databases, ``config/users`` and ``config/acls``. The broker does not start with an unreadable file. The
``.bak`` is a second copy of the same state: a copy of the previous state would contain invalid passwords.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rmq_core.broker.access.policies import Entry, canonical_entry, parse_entry, refusal
from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies.codec import BodyStruct, decode_body
from rmq_core.remoting.bodies.configs import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_formats.errors import DecodeError, OptionError, StoreError

_FILE: Final = "access/accounts.json"
_MAX_ENTRIES: Final = 10_000  # users, and entries of a subject's policies
SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
_POLICY_TYPES: Final = {"custom": "Custom", "default": "Default"}


class User(BodyStruct, frozen=True, kw_only=True):
    """User in the file."""

    password: str
    user_status: str = ENABLED
    user_type: str = NORMAL

    def __repr__(self) -> str:
        return f"<{self.user_type} user, {self.user_status}d>"

    @property
    def is_super(self) -> bool:
        return self.user_type == SUPER


class _Saved(BodyStruct, frozen=True, kw_only=True):
    acls: dict[str, dict[str, list[PolicyEntryInfo]]] = {}
    users: dict[str, User] = {}


@dataclass(frozen=True, slots=True)
class AccountTable:
    """Users by name, and their policies by user and type, both as they are saved and parsed."""

    users: dict[str, User]
    acls: dict[str, dict[str, list[PolicyEntryInfo]]]
    entries: dict[str, tuple[tuple[Entry, ...], ...]] = field(default_factory=dict)

    def copy(self) -> "AccountTable":
        """Return a copy for changes, which replace values of the dictionaries and do not modify them."""
        return AccountTable(dict(self.users), dict(self.acls), dict(self.entries))

    def put_user(self, name: str, user: User) -> None:
        """Create or replace a user. Raises ResponseError if there are too many."""
        if name not in self.users and len(self.users) >= _MAX_ENTRIES:
            raise refusal(f"There are {_MAX_ENTRIES} users already.")
        self.users[name] = user

    def remove_user(self, name: str) -> None:
        if self.users.pop(name, None) is not None:
            self.acls.pop(name, None)
            self.entries.pop(name, None)

    def put_policies(self, name: str, policies: list[PolicyInfo]) -> None:
        """Add or replace a user's entries, one for each type and resource. Raises ResponseError."""
        table = {kind: list(entries) for kind, entries in self.acls.get(name, {}).items()}
        for policy in policies:
            entries = table.setdefault(parse_policy_type(policy.policy_type or None), [])
            for entry in map(canonical_entry, policy.entries):
                indexes = [index for index, other in enumerate(entries) if other.resource == entry.resource]
                if indexes:
                    entries[indexes[0]] = entry
                else:
                    entries.append(entry)
        if sum(map(len, table.values())) > _MAX_ENTRIES:
            raise refusal(f"A subject has {_MAX_ENTRIES} entries at most.")
        self.acls[name] = table
        self.parse(name)

    def remove_policies(self, name: str, kind: str | None, resource: str | None) -> bool:
        """Remove a user's entry for a resource, or all policies; return False if there are none."""
        table = self.acls.get(name)
        if table is None:
            return False
        if resource:
            removed_kind = parse_policy_type(kind)
            remaining = {
                entry_kind: [entry for entry in entries if entry_kind != removed_kind or entry.resource != resource]
                for entry_kind, entries in table.items()
            }
            table = {entry_kind: entries for entry_kind, entries in remaining.items() if entries}
        else:
            table = {}
        if table:
            self.acls[name] = table
            self.parse(name)
        else:
            del self.acls[name]
            self.entries.pop(name, None)
        return True

    def acl(self, name: str) -> AclInfo | None:
        """Return a user's policies as administrators see them; None without policies."""
        table = self.acls.get(name)
        if table is None:
            return None
        policies = [PolicyInfo(entries=entries, policy_type=kind) for kind, entries in table.items()]
        return AclInfo(policies=policies, subject=f"User:{name}")

    def parse(self, name: str) -> None:
        """Parse a user's entries. Raises ResponseError."""
        table = self.acls[name]
        self.entries[name] = tuple(tuple(map(parse_entry, table.get(kind, []))) for kind in _POLICY_TYPES.values())


class Accounts:
    """Users and their file. A change takes effect after its write."""

    def __init__(self, files: TableFiles) -> None:
        """Load the users. Raises StoreError if the file cannot be read, or is missing beside its ``.bak``."""
        saved = _load(files)
        self.table = AccountTable(saved.users, saved.acls)
        self.version = 0
        try:
            for name in saved.acls:
                self.table.parse(name)
        except ResponseError as error:
            raise StoreError(f"{files.directory}/{_FILE}: {error.remark}") from error
        self._to_write = self.table
        self._change_lock = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self.file = TableFile(files, _FILE, self._body, backs_up_former_text=False)

    def _body(self) -> _Saved:
        return _Saved(acls=self._to_write.acls, users=self._to_write.users)

    @property
    def users(self) -> dict[str, User]:
        return self.table.users

    def create_super_users(self, credentials: Iterable[tuple[str, str]]) -> None:
        """Create missing super users by name and password, before there are clients. Raises OptionError without any."""
        for name, password in credentials:
            if name not in self.users:
                self.table.put_user(name, User(password=password, user_type=SUPER))
                self.file.changes += 1
        self.file.save()
        if not any(user.is_super for user in self.users.values()):
            example = 'initAuthenticationUser={"username":…,"password":…}'
            raise OptionError(f"authenticationEnabled=true requires a super user: give {example}")

    def policies(self, name: str) -> tuple[tuple[Entry, ...], ...]:
        """Return a user's entries: those of the Custom policies, then those of the Default policies."""
        return self.table.entries.get(name, ())

    async def change(self, apply: Callable[[AccountTable], None]) -> None:
        """Apply one change after the other: ``apply`` changes a copy, which is written and then replaces the table.

        Raises ResponseError from ``apply``, or if the table cannot be written; then nothing has changed.
        """
        change = asyncio.ensure_future(self._change(apply))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)  # else a cancelled caller could leave a change written but without effect

    async def _change(self, apply: Callable[[AccountTable], None]) -> None:
        async with self._change_lock:
            self._to_write = self.table.copy()
            try:
                apply(self._to_write)
            except BaseException:
                self._to_write = self.table
                raise
            self.file.changes += 1
            written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.file.call_when_written(written.set_result)
            if not await written:
                self._to_write = self.table
                self.file.changes += 1  # the file may have the change, and is overwritten with the unchanged table
                raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{_FILE} cannot be written: {self.file.fault}")
            self.table = self._to_write
            self.version += 1


def parse_policy_type(text: str | None) -> str:
    """Parse a type of policies, by default Custom. Raises ResponseError."""
    kind = _POLICY_TYPES.get((text or "Custom").lower())
    if kind is None:
        raise refusal(f"The policy type {text} is unknown.")
    return kind


def parse_subject(text: str | None) -> str:
    """Parse ``User:name``. Raises ResponseError."""
    head, colon, name = (text or "").partition(":")
    if head.lower() != "user" or not colon or not name:
        raise refusal("The subject is null.")
    return name


def user_info(name: str, user: User, *, with_password: bool = False) -> UserInfo:
    """Return a user as administrators see it, by default without the password."""
    password = user.password if with_password else msgspec.UNSET
    return UserInfo(password=password, user_status=user.user_status, user_type=user.user_type, username=name)


def _load(files: TableFiles) -> _Saved:
    path = f"{files.directory}/{_FILE}"
    directory = str(Path(path).parent)
    files.disk.make_durable_directory(directory)
    Path(directory).chmod(0o700)
    try:
        text = files.disk.read_file(path)
        saved = decode_body(text, _Saved)
    except FileNotFoundError:
        if Path(f"{path}.bak").exists():
            problem = "not found, but a .bak exists. Restore the .bak, or delete it to have no users."
            raise StoreError(f"{path}: {problem}") from None
        return _Saved()
    except DecodeError:  # the error's text quotes the file with its passwords
        problem = "cannot be parsed, and has all users. Restore the file, or copy its .bak over it."
        raise StoreError(f"{path}: {problem}") from None
    _write_backup(path, text, files)
    return saved


def _write_backup(path: str, text: bytes, files: TableFiles) -> None:
    """Copy the file to its ``.bak``, and remove unfinished files of a killed change."""
    copy = f"{path}.bak"
    for unfinished in (f"{path}.new", f"{copy}.new"):
        Path(unfinished).unlink(missing_ok=True)
    try:
        if files.disk.read_file(copy) == text:
            return
    except FileNotFoundError:
        pass
    files.disk.replace(copy, text)
