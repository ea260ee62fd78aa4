"""Users and their policies, as administrators send them (codes 3001 to 3010) and as the broker's file has them.

Source: ``UserInfo``, ``AclInfo``.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from typing import Literal

from msgspec import UNSET

from rmq_core.remoting.bodies.codec import BodyStruct, Maybe

PolicyType = Literal["Custom", "Default"]


class UserInfo(BodyStruct, frozen=True, kw_only=True):
    """A user, or what of it is to change. ``user_type``: Super or Normal; ``user_status``: enable or disable."""

    password: Maybe[str | None] = UNSET
    user_status: Maybe[str | None] = UNSET
    user_type: Maybe[str | None] = UNSET
    username: Maybe[str | None] = UNSET

    def __repr__(self) -> str:
        return f"<user {self.username!r} {self.user_type} {self.user_status}>"


class PolicyEntryInfo(BodyStruct, frozen=True, kw_only=True):
    """Policy entry: allowed or denied actions of a subject on a resource; an empty list of addresses means all."""

    actions: list[str] = []
    decision: str | None = None
    resource: str | None = None
    source_ips: Maybe[list[str] | None] = UNSET


class PolicyInfo(BodyStruct, frozen=True, kw_only=True):
    """Entries of one type: those that are Default count where no Custom one fits."""

    entries: list[PolicyEntryInfo] = []
    policy_type: Maybe[str | None] = UNSET


class AclInfo(BodyStruct, frozen=True, kw_only=True):
    """The policies of a subject, ``User:name``."""

    policies: list[PolicyInfo] = []
    subject: Maybe[str | None] = UNSET
