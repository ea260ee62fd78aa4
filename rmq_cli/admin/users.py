"""Users and their policies: ``rmq admin createUser``, ``createAcl`` and others."""

import getpass
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.admin.options import Broker, ClusterName, addresses, named_addresses
from rmq_cli.admin.result_table import ResultTable, apply_to_brokers
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_core.client import Admin
    from rmq_core.remoting.bodies.configs import AclInfo, UserInfo

User = Annotated[str, typer.Option("-u", "--username", metavar="U", help="The user.")]
_PASSWORD_HELP = "The password; - asks for it, or reads a line: what is on a command line can be seen by others."
UserType = Annotated[str | None, typer.Option("-t", "--userType", metavar="TYPE", help="Super or Normal.")]
Subject = Annotated[
    str, typer.Option("-s", "--subject", metavar="User:U", help="Subject of the policies, as User:alice.")
]
Resources = Annotated[
    str, typer.Option("-r", "--resources", metavar="R,R", help="Such as Topic:Orders*,Group:readers; * is all.")
]
Actions = Annotated[str, typer.Option("-a", "--actions", metavar="A,A", help="Pub, Sub, Create … or All.")]
Decision = Annotated[str, typer.Option("-d", "--decision", metavar="D", help="Allow or Deny.")]
Addresses = Annotated[
    str, typer.Option("-i", "--sourceIp", metavar="IP,IP", help="Client addresses, as 10.0.0.0/8; default: all.")
]
From = Annotated[str, typer.Option("-f", "--fromBroker", metavar="HOST:PORT", help="The broker to copy from.")]
To = Annotated[str, typer.Option("-t", "--toBroker", metavar="HOST:PORT", help="The broker to copy to.")]


async def create_user(
    admin: "Admin",
    *,
    user: User,
    password: Annotated[str, typer.Option("-p", "--password", metavar="P", help=_PASSWORD_HELP)] = "-",
    user_type: UserType = None,
    broker: Broker = None,
    cluster: ClusterName = None,
) -> ResultTable:
    """Create a user. On all masters, unless -b or -c selects brokers."""
    from rmq_core.remoting.bodies.configs import UserInfo  # noqa: PLC0415 # --help does not need it

    new_user = UserInfo(username=user, password=_password(password), user_type=user_type)
    masters = await addresses(admin, broker, cluster)
    return await apply_to_brokers(masters, lambda address: admin.users.create(address, new_user), ("user",), user)


async def update_user(
    admin: "Admin",
    *,
    user: User,
    password: Annotated[str | None, typer.Option("-p", "--password", metavar="P", help=_PASSWORD_HELP)] = None,
    user_type: UserType = None,
    status: Annotated[str | None, typer.Option("-s", "--userStatus", metavar="S", help="enable or disable.")] = None,
    broker: Broker = None,
    cluster: ClusterName = None,
) -> ResultTable:
    """Change a user's password, type or status. On all masters, unless -b or -c selects brokers."""
    from rmq_core.remoting.bodies.configs import UserInfo  # noqa: PLC0415 # --help does not need it

    if password is None and user_type is None and status is None:
        raise OptionError("updateUser: say what is to change, with -p, -t or -s")
    secret = None if password is None else _password(password)
    changed = UserInfo(username=user, password=secret, user_type=user_type, user_status=status)
    masters = await addresses(admin, broker, cluster)
    return await apply_to_brokers(masters, lambda address: admin.users.update(address, changed), ("user",), user)


async def delete_user(admin: "Admin", *, user: User, broker: Broker = None, cluster: ClusterName = None) -> ResultTable:
    """Delete a user and its policies. Requires -b or -c."""
    masters = await named_addresses(admin, "deleteUser", broker, cluster)
    return await apply_to_brokers(masters, lambda address: admin.users.delete(address, user), ("deleted_user",), user)


async def get_user(admin: "Admin", *, user: User, broker: Broker = None, cluster: ClusterName = None) -> ResultTable:
    """Show a user, without the password."""
    users = [(address, await admin.users.get(address, user)) for address in await addresses(admin, broker, cluster)]
    return _users((address, info) for address, info in users if info is not None)


async def list_users(
    admin: "Admin",
    *,
    part: Annotated[
        str, typer.Option("-f", "--filter", metavar="PART", help="Only users whose name contains PART.")
    ] = "",
    broker: Broker = None,
    cluster: ClusterName = None,
) -> ResultTable:
    """List the users, without passwords."""
    users = []
    for address in await addresses(admin, broker, cluster):
        users += [(address, info) for info in await admin.users.find(address, part)]
    return _users(users)


async def copy_user(
    admin: "Admin",
    *,
    source: From,
    target: To,
    users: Annotated[
        str, typer.Option("-u", "--usernames", metavar="U,U", help="Names of the users; default: all.")
    ] = "",
) -> ResultTable:
    """Copy users to another broker; existing users are overwritten."""
    names = _split(users)
    copied = [info for info in await admin.users.find(source) if not names or info.username in names]
    for info in copied:
        if not info.password:
            raise OptionError(f"copyUser: {source} returns passwords to super users only")
        existing = await admin.users.get(target, str(info.username))
        await (admin.users.create if existing is None else admin.users.update)(target, info)
    code = EXIT_CLEAN if copied else EXIT_FINDINGS
    return ResultTable(("broker", "user"), [(target, info.username or "") for info in copied], code=code)


def _put_acl_command(help_text: str, *, is_new: bool) -> Callable[..., Awaitable[ResultTable]]:
    async def put_acl(
        admin: "Admin",
        *,
        subject: Subject,
        resources: Resources,
        actions: Actions,
        decision: Decision,
        source_ips: Addresses = "",
        broker: Broker = None,
        cluster: ClusterName = None,
    ) -> ResultTable:
        from rmq_core.remoting.bodies.configs import AclInfo, PolicyEntryInfo, PolicyInfo  # noqa: PLC0415

        action_names, addresses_of_clients = _split(actions), _split(source_ips)
        entries = [
            PolicyEntryInfo(resource=name, actions=action_names, decision=decision, source_ips=addresses_of_clients)
            for name in _split(resources)
        ]
        acl = AclInfo(subject=subject, policies=[PolicyInfo(entries=entries)])
        masters = await addresses(admin, broker, cluster)
        return await apply_to_brokers(
            masters, lambda address: admin.users.put_acl(address, acl, is_new=is_new), ("subject",), subject
        )

    put_acl.__doc__ = help_text
    return put_acl


create_acl = _put_acl_command(
    "Allow or deny a user actions on resources. On all masters, unless -b or -c selects brokers.", is_new=True
)
update_acl = _put_acl_command(
    "Change what a user may do with resources. On all masters, unless -b or -c selects brokers.", is_new=False
)


async def delete_acl(
    admin: "Admin",
    *,
    subject: Subject,
    resource: Annotated[str, typer.Option("-r", "--resources", metavar="R", help="The resource; default: all.")] = "",
    broker: Broker = None,
    cluster: ClusterName = None,
) -> ResultTable:
    """Delete a user's policies, or those for one resource. Requires -b or -c."""
    masters = await named_addresses(admin, "deleteAcl", broker, cluster)
    for address in masters:
        await admin.users.delete_acl(address, subject, resource)
    return ResultTable(("broker", "subject", "deleted"), [(address, subject, resource or "all") for address in masters])


async def get_acl(
    admin: "Admin", *, subject: Subject, broker: Broker = None, cluster: ClusterName = None
) -> ResultTable:
    """Show a user's policies."""
    masters = await addresses(admin, broker, cluster)
    acls = [(address, await admin.users.get_acl(address, subject)) for address in masters]
    return _acls((address, acl) for address, acl in acls if acl is not None)


async def list_acls(
    admin: "Admin",
    *,
    subject: Annotated[
        str, typer.Option("-s", "--subject", metavar="PART", help="Only subjects that contain PART.")
    ] = "",
    resource: Annotated[
        str, typer.Option("-r", "--resource", metavar="PART", help="Only resources that contain PART.")
    ] = "",
    broker: Broker = None,
    cluster: ClusterName = None,
) -> ResultTable:
    """List the policies of all users."""
    acls = []
    for address in await addresses(admin, broker, cluster):
        acls += [(address, acl) for acl in await admin.users.find_acls(address, subject, resource)]
    return _acls(acls)


async def copy_acl(
    admin: "Admin",
    *,
    source: From,
    target: To,
    subjects: Annotated[str, typer.Option("-s", "--subjects", metavar="S,S", help="The subjects; default: all.")] = "",
) -> ResultTable:
    """Copy policies of one broker to another."""
    names = _split(subjects)
    acls = [acl for acl in await admin.users.find_acls(source) if not names or acl.subject in names]
    for acl in acls:
        await admin.users.put_acl(target, acl, is_new=True)
    code = EXIT_CLEAN if acls else EXIT_FINDINGS
    return ResultTable(("broker", "subject"), [(target, acl.subject or "") for acl in acls], code=code)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _password(text: str) -> str:
    """Return a password, or prompt for the password if the text is ``-``. Raises OptionError if there is none."""
    if text == "-":
        text = getpass.getpass("password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise OptionError("-p: the password is empty")
    return text


def _users(users: "Iterable[tuple[str, UserInfo]]") -> ResultTable:
    rows = [(address, user.username or "", user.user_type or "", user.user_status or "") for address, user in users]
    return ResultTable(("broker", "user", "type", "status"), rows, code=EXIT_CLEAN if rows else EXIT_FINDINGS)


def _acls(acls: "Iterable[tuple[str, AclInfo]]") -> ResultTable:
    rows = [
        (
            address,
            acl.subject or "",
            policy.policy_type or "Custom",
            entry.resource or "",
            ",".join(entry.actions),
            ",".join(entry.source_ips or []),
            entry.decision or "",
        )
        for address, acl in acls
        for policy in acl.policies
        for entry in policy.entries
    ]
    columns = "broker", "subject", "policy", "resource", "actions", "source_ips", "decision"
    return ResultTable(columns, rows, code=EXIT_CLEAN if rows else EXIT_FINDINGS)
