"""The users of a broker and their policies, kept in ``config/access/accounts.json``, which only its owner may read.

Signatures are checked with the password itself, so it is kept as it is. The original keeps the same in two RocksDB
databases, ``config/users`` and ``config/acls``. A file that cannot be read does not count as one without users: the
broker does not start. Its ``.bak`` is a second copy of the same state: that before would keep passwords that are none
any more.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from rmq_core.broker.access.policies import Entry, canonical, parse_entry, refusal
from rmq_core.broker.tables.table_file import TableFile, TableFiles
from rmq_core.remoting.bodies import BodyStruct, decode_body
from rmq_core.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
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


class Accounts:
    """Users by name, and their policies.

    Attributes:
        users: by name.
        file: where all is kept.
    """

    def __init__(self, files: TableFiles) -> None:
        """Load the users.

        Raises:
            StoreError: the file cannot be read, or is missing and has been there.
        """
        saved = _load(files)
        self.users = saved.users
        self._acls = saved.acls
        self._entries: dict[str, tuple[tuple[Entry, ...], ...]] = {}
        try:
            for name in self._acls:
                self._parse(name)
        except ResponseError as error:
            raise StoreError(f"{files.directory}/{_FILE}: {error.remark}") from error
        self.file = TableFile(files, _FILE, lambda: _Saved(acls=self._acls, users=self.users), keeps_former=False)

    def make_super_users(self, named: Iterable[tuple[str, str]]) -> None:
        """Make the super users that settings name, where there is nobody of the name.

        Args:
            named: names and passwords.

        Raises:
            OptionError: there is no super user, so that nobody could make one.
        """
        for name, password in named:
            if name not in self.users:
                self.put_user(name, User(password=password, user_type=SUPER))
        if not any(user.is_super for user in self.users.values()):
            wanted = 'initAuthenticationUser={"username":…,"password":…}'
            raise OptionError(f"authenticationEnabled=true, and no super user: give {wanted}")

    def policies(self, name: str) -> tuple[tuple[Entry, ...], ...]:
        """Give a user's entries: those of the Custom policies, and those of the Default ones."""
        return self._entries.get(name, ())

    def put_user(self, name: str, user: User) -> None:
        """Create or replace a user. Raises ResponseError if there are too many."""
        if name not in self.users and len(self.users) >= _MOST:
            raise refusal(f"There are {_MOST} users already.")
        self.users[name] = user
        self._changed()

    def remove_user(self, name: str) -> None:
        """Remove a user, if there is one, with its policies."""
        if self.users.pop(name, None) is not None:
            self._acls.pop(name, None)
            self._entries.pop(name, None)
            self._changed()

    def put_policies(self, name: str, policies: list[PolicyInfo]) -> None:
        """Add entries to a user's policies; one with the resource of another of its type takes the place of that.

        Raises:
            ResponseError: an entry that is none.
        """
        table = {kind: list(entries) for kind, entries in self._acls.get(name, {}).items()}
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
        self._acls[name] = table
        self._parse(name)
        self._changed()

    def remove_policies(self, name: str, kind: str | None, resource: str | None) -> bool:
        """Remove a user's entry for a resource, or all policies if none is named; returns whether there are any."""
        table = self._acls.get(name)
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
            self._acls[name] = table
            self._parse(name)
        else:
            del self._acls[name]
            self._entries.pop(name, None)
        self._changed()
        return True

    def acl(self, name: str) -> AclInfo | None:
        """Give a user's policies as administrators see them; None if there are none."""
        table = self._acls.get(name)
        if table is None:
            return None
        policies = [PolicyInfo(entries=entries, policy_type=kind) for kind, entries in table.items()]
        return AclInfo(policies=policies, subject=f"{_SUBJECT}{name}")

    def subjects(self) -> list[str]:
        """Name the users that have policies, in order."""
        return sorted(self._acls)

    def _parse(self, name: str) -> None:
        table = self._acls[name]
        self._entries[name] = tuple(tuple(map(parse_entry, table.get(kind, []))) for kind in _POLICY_TYPES.values())

    def _changed(self) -> None:
        self.file.changes += 1
        self.file.save()


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
