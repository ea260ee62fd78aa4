"""The users of a broker and their policies, kept in ``config/access/accounts.json``, which only its owner may read.

Signatures are checked with the password itself, so it is kept as it is. The original keeps the same in two RocksDB
databases, ``config/users`` and ``config/acls``. A file that cannot be read does not count as one without users: the
broker does not start. Its ``.bak`` is a second copy of the same state: that before would keep passwords that are none
any more.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rmq_core.broker.access.policies import Entry, canonical, parse_entry, refusal
from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies import BodyStruct, decode_body
from rmq_core.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_formats.errors import DecodeError, OptionError, StoreError

_FILE: Final = "access/accounts.json"
_MOST: Final = 10_000  # users, and entries of a subject's policies
SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
_SUBJECT: Final = "User:"
_POLICY_TYPES: Final = {"custom": "Custom", "default": "Default"}


class User(BodyStruct, frozen=True, kw_only=True):
    """A user as the file has it."""

    password: str
    user_status: str = ENABLED
    user_type: str = NORMAL

    def __repr__(self) -> str:
        return f"<{self.user_type} user, {self.user_status}d>"

    @property
    def is_super(self) -> bool:
        """Whether nothing is forbidden to the user."""
        return self.user_type == SUPER


class _Saved(BodyStruct, frozen=True, kw_only=True):
    acls: dict[str, dict[str, list[PolicyEntryInfo]]] = {}
    users: dict[str, User] = {}


@dataclass(frozen=True, slots=True)
class AccountTable:
    """Users by name, and their policies, at one moment.

    Attributes:
        users: by name.
        acls: lists of entries by user and type of policies.
        entries: the same entries, parsed.
    """

    users: dict[str, User]
    acls: dict[str, dict[str, list[PolicyEntryInfo]]]
    entries: dict[str, tuple[tuple[Entry, ...], ...]] = field(default_factory=dict)

    def copy(self) -> "AccountTable":
        """A table to be changed: what the dictionaries hold is replaced, and never changed."""
        return AccountTable(dict(self.users), dict(self.acls), dict(self.entries))

    def put_user(self, name: str, user: User) -> None:
        """Create or replace a user. Raises ResponseError if there are too many."""
        if name not in self.users and len(self.users) >= _MOST:
            raise refusal(f"There are {_MOST} users already.")
        self.users[name] = user

    def remove_user(self, name: str) -> None:
        """Remove a user, if there is one, with its policies."""
        if self.users.pop(name, None) is not None:
            self.acls.pop(name, None)
            self.entries.pop(name, None)

    def put_policies(self, name: str, policies: list[PolicyInfo]) -> None:
        """Add entries to a user's policies; one with the resource of another of its type takes the place of that.

        Raises:
            ResponseError: an entry that is none.
        """
        table = {kind: list(entries) for kind, entries in self.acls.get(name, {}).items()}
        for policy in policies:
            entries = table.setdefault(policy_type(policy.policy_type or None), [])
            for entry in map(canonical, policy.entries):
                places = [at for at, other in enumerate(entries) if other.resource == entry.resource]
                if places:
                    entries[places[0]] = entry
                else:
                    entries.append(entry)
        if sum(map(len, table.values())) > _MOST:
            raise refusal(f"A subject has {_MOST} entries at most.")
        self.acls[name] = table
        self.parse(name)

    def remove_policies(self, name: str, kind: str | None, resource: str | None) -> bool:
        """Remove a user's entry for a resource, or all policies if none is named; returns whether there are any."""
        table = self.acls.get(name)
        if table is None:
            return False
        if resource:
            wanted = policy_type(kind)
            kept = {
                one: [entry for entry in entries if one != wanted or entry.resource != resource]
                for one, entries in table.items()
            }
            table = {one: entries for one, entries in kept.items() if entries}
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
        """Give a user's policies as administrators see them; None if there are none."""
        table = self.acls.get(name)
        if table is None:
            return None
        policies = [PolicyInfo(entries=entries, policy_type=kind) for kind, entries in table.items()]
        return AclInfo(policies=policies, subject=f"{_SUBJECT}{name}")

    def parse(self, name: str) -> None:
        """Parse a user's entries. Raises ResponseError."""
        table = self.acls[name]
        self.entries[name] = tuple(tuple(map(parse_entry, table.get(kind, []))) for kind in _POLICY_TYPES.values())


class Accounts:
    """The users that are in force, and the file that has them. A change is written first, and in force then.

    Attributes:
        table: what is in force.
        version: counts the changes of it.
        file: where it is kept.
    """

    def __init__(self, files: TableFiles) -> None:
        """Load the users.

        Raises:
            StoreError: the file cannot be read, or is missing and has been there.
        """
        saved = _load(files)
        self.table = AccountTable(saved.users, saved.acls)
        self.version = 0
        try:
            for name in saved.acls:
                self.table.parse(name)
        except ResponseError as error:
            raise StoreError(f"{files.directory}/{_FILE}: {error.remark}") from error
        self._to_write = self.table
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self.file = TableFile(
            files, _FILE, lambda: _Saved(acls=self._to_write.acls, users=self._to_write.users), keeps_former=False
        )

    @property
    def users(self) -> dict[str, User]:
        """The users in force, by name."""
        return self.table.users

    def make_super_users(self, named: Iterable[tuple[str, str]]) -> None:
        """Make the super users that settings name, where there is nobody of the name, before there are clients.

        Args:
            named: names and passwords.

        Raises:
            OptionError: there is no super user, so that nobody could make one.
        """
        for name, password in named:
            if name not in self.users:
                self.table.put_user(name, User(password=password, user_type=SUPER))
                self.file.changes += 1
        self.file.save()
        if not any(user.is_super for user in self.users.values()):
            wanted = 'initAuthenticationUser={"username":…,"password":…}'
            raise OptionError(f"authenticationEnabled=true, and no super user: give {wanted}")

    def policies(self, name: str) -> tuple[tuple[Entry, ...], ...]:
        """Give a user's entries: those of the Custom policies, and those of the Default ones."""
        return self.table.entries.get(name, ())

    async def change(self, apply: Callable[[AccountTable], None]) -> None:
        """Change users or policies: write the changed table, then put it in force; changes wait for one another.

        Args:
            apply: changes a copy of what is in force.

        Raises:
            ResponseError: what ``apply`` raises, or the table cannot be written; then nothing has changed.
        """
        change = asyncio.ensure_future(self._change(apply))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)  # else who leaves in the middle would leave it written, and not in force

    async def _change(self, apply: Callable[[AccountTable], None]) -> None:
        async with self._turn:
            self._to_write = self.table.copy()
            try:
                apply(self._to_write)
            except BaseException:
                self._to_write = self.table
                raise
            self.file.changes += 1
            written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.file.when_written(written.set_result)
            if not await written:
                self._to_write = self.table
                self.file.changes += 1  # the file may have the change: what is in force is written over it
                raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{_FILE} cannot be written: {self.file.fault}")
            self.table = self._to_write
            self.version += 1


def policy_type(text: str | None) -> str:
    """Parse a type of policies; none is Custom. Raises ResponseError."""
    found = _POLICY_TYPES.get((text or "Custom").lower())
    if found is None:
        raise refusal(f"The policy type {text} is unknown.")
    return found


def parse_subject(text: str | None) -> str:
    """Parse ``User:name``. Raises ResponseError."""
    head, colon, name = (text or "").partition(":")
    if head.lower() != "user" or not colon or not name:
        raise refusal("The subject is null.")
    return name


def user_info(name: str, user: User, *, with_password: bool = False) -> UserInfo:
    """Give a user as administrators see it; without the password, which nobody needs to be told."""
    password = user.password if with_password else msgspec.UNSET
    return UserInfo(password=password, user_status=user.user_status, user_type=user.user_type, username=name)


def _load(files: TableFiles) -> _Saved:
    path = f"{files.directory}/{_FILE}"
    directory = str(Path(path).parent)
    files.disk.make_forced_directory(directory)
    Path(directory).chmod(0o700)
    try:
        text = files.disk.read_file(path)
        saved = decode_body(text, _Saved)
    except FileNotFoundError:
        if Path(f"{path}.bak").exists():
            raise StoreError(f"{path}: is missing, and was there: copy its .bak over it, or remove that") from None
        return _Saved()
    except DecodeError:  # whose text quotes the file, and so passwords
        raise StoreError(
            f"{path}: cannot be read, and without it nobody is known: restore it, or copy its .bak over it"
        ) from None
    _copy(path, text, files)
    return saved


def _copy(path: str, text: bytes, files: TableFiles) -> None:
    """Have ``.bak`` be what the file is, and nothing besides: a change that was killed may have left another state."""
    copy = f"{path}.bak"
    for begun in (f"{path}.new", f"{copy}.new"):
        Path(begun).unlink(missing_ok=True)
    try:
        if files.disk.read_file(copy) == text:
            return
    except FileNotFoundError:
        pass
    files.disk.replace(copy, text)
