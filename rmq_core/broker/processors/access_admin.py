"""Administration of users and policies (codes 3001 to 3010).

Source: ``AdminBrokerProcessor#createUser`` … ``#listAcl``, ``AuthenticationMetadataManagerImpl``,
``AuthorizationMetadataManagerImpl``.
"""

from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from rmq_core.broker.access.accounts import (
    DISABLED,
    ENABLED,
    NORMAL,
    SUPER,
    Accounts,
    AccountTable,
    User,
    parse_subject,
    user_info,
)
from rmq_core.broker.access.guard import audit
from rmq_core.broker.access.policies import refusal
from rmq_core.remoting.access.acl import ACCESS_KEY
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import AclInfo, UserInfo
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand, encode_json

_MAX_NAME: Final = 255
_TYPES: Final = {SUPER.lower(): SUPER, NORMAL.lower(): NORMAL}
_STATES: Final = {ENABLED, DISABLED}


def access_handlers(accounts: Accounts | None) -> dict[int, Handler]:
    """Return the handlers of requests that administer users and policies; refusals without authentication."""
    changes: dict[int, Callable[[AccountTable, RemotingCommand], None]] = {
        RequestCode.AUTH_CREATE_USER: _create_user,
        RequestCode.AUTH_UPDATE_USER: _update_user,
        RequestCode.AUTH_DELETE_USER: _delete_user,
        RequestCode.AUTH_CREATE_ACL: _put_acl,
        RequestCode.AUTH_UPDATE_ACL: _put_acl,
        RequestCode.AUTH_DELETE_ACL: _delete_acl,
    }
    queries: dict[int, Callable[[AccountTable, RemotingCommand], object]] = {
        RequestCode.AUTH_GET_USER: _get_user,
        RequestCode.AUTH_LIST_USER: _list_users,
        RequestCode.AUTH_GET_ACL: _get_acl,
        RequestCode.AUTH_LIST_ACL: _list_acls,
    }
    if accounts is None:
        return dict.fromkeys([*changes, *queries], _refuse_without_users)
    handlers = {code: _change_handler(accounts, change) for code, change in changes.items()}
    return handlers | {code: _query_handler(accounts, query) for code, query in queries.items()}


def _create_user(table: AccountTable, request: RemotingCommand) -> None:
    name, info = _read_user(request)
    if name in table.users:
        raise refusal("The user is existed")
    if not info.password:
        raise refusal("password can not be blank")
    kind = _parse(info.user_type, _TYPES, "user type") or NORMAL
    if kind == SUPER and not _get_requester(table, request).is_super:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
    table.put_user(name, User(password=info.password, user_type=kind))


def _update_user(table: AccountTable, request: RemotingCommand) -> None:
    name, info = _read_user(request)
    user = table.users.get(name)
    if user is None:
        raise refusal("The user is not exist")
    kind = _parse(info.user_type, _TYPES, "user type") or user.user_type
    state = _parse(info.user_status, {word: word for word in _STATES}, "user status") or user.user_status
    if SUPER in {kind, user.user_type} and not _get_requester(table, request).is_super:
        raise refusal("The super user can only be update by super user")
    _require_super(table, name, remains_super=kind == SUPER and state == ENABLED)
    table.put_user(name, User(password=info.password or user.password, user_type=kind, user_status=state))


def _delete_user(table: AccountTable, request: RemotingCommand) -> None:
    name = _read_name(request)
    user = table.users.get(name)
    if user is not None and user.is_super and not _get_requester(table, request).is_super:
        raise refusal("The super user can only be update by super user")
    _require_super(table, name, remains_super=False)
    table.remove_user(name)


def _get_user(table: AccountTable, request: RemotingCommand) -> object:
    name = _read_name(request)
    user = table.users.get(name)
    return None if user is None else user_info(name, user, with_password=_get_requester(table, request).is_super)


def _list_users(table: AccountTable, request: RemotingCommand) -> object:
    name_filter = request.ext_fields.get("filter", "")
    is_super = _get_requester(table, request).is_super
    return [
        user_info(name, user, with_password=is_super)
        for name, user in sorted(table.users.items())
        if name_filter in name
    ]


def _put_acl(table: AccountTable, request: RemotingCommand) -> None:
    name = parse_subject(request.ext_fields.get("subject"))
    if name not in table.users:
        raise refusal(f"The subject of User:{name} is not exist.")
    policies = decode_body(request.body, AclInfo, is_request=True).policies
    if not policies:
        raise refusal("The policies is empty.")
    if any(not policy.entries for policy in policies):
        raise refusal("The policy entries is empty.")
    table.put_policies(name, policies)


def _delete_acl(table: AccountTable, request: RemotingCommand) -> None:
    fields = request.ext_fields
    name = parse_subject(fields.get("subject"))
    if not table.remove_policies(name, fields.get("policyType"), fields.get("resource")):
        raise refusal("The acl is not exist.")


def _get_acl(table: AccountTable, request: RemotingCommand) -> object:
    name = parse_subject(request.ext_fields.get("subject"))
    if name not in table.users:
        raise refusal("The subject is not exist.")
    return table.acl(name)


def _list_acls(table: AccountTable, request: RemotingCommand) -> object:
    fields = request.ext_fields
    resource_filter = fields.get("resourceFilter", "")
    acls = [table.acl(name) for name in sorted(table.acls) if fields.get("subjectFilter", "") in f"User:{name}"]
    return [
        acl
        for acl in acls
        if acl and any(resource_filter in (entry.resource or "") for policy in acl.policies for entry in policy.entries)
    ]


def _change_handler(accounts: Accounts, change: Callable[[AccountTable, RemotingCommand], None]) -> Handler:
    async def handle(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        await accounts.change(lambda table: change(table, request))
        fields = request.ext_fields
        audit.info(
            "%(client)s, user %(user)s: request %(code)d of %(subject)s",
            {
                "client": connection.remote_address,
                "user": fields.get(ACCESS_KEY),
                "code": request.code,
                "subject": fields.get("subject") or fields.get("username"),
            },
        )
        return request.response()

    return handle


def _query_handler(accounts: Accounts, query: Callable[[AccountTable, RemotingCommand], object]) -> Handler:
    def handle(request: RemotingCommand, _: Connection) -> RemotingCommand:
        value = query(accounts.table, request)
        return request.response(body=encode_json(value) if value else b"")

    return handle


def _refuse_without_users(_: RemotingCommand, __: Connection) -> NoReturn:
    raise refusal("The broker knows no users: authenticationEnabled is not set.")


def _get_requester(table: AccountTable, request: RemotingCommand) -> User:
    """Return the user who signed a request, as checked by the guard. Raises ResponseError for a deleted user."""
    name = request.ext_fields[ACCESS_KEY]
    user = table.users.get(name)
    if user is None:
        raise refusal(f"User:{name} is not found.")
    return user


def _read_name(request: RemotingCommand) -> str:
    name = request.ext_fields.get("username", "").strip()
    if not name:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    if len(name) > _MAX_NAME:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, f"The username has more than {_MAX_NAME} characters")
    return name


def _read_user(request: RemotingCommand) -> tuple[str, UserInfo]:
    return _read_name(request), decode_body(request.body, UserInfo, is_request=True)


def _parse(text: str | msgspec.UnsetType | None, words: dict[str, str], what: str) -> str | None:
    """Parse a word without case; None without a word. Raises ResponseError for an unknown word."""
    if text is msgspec.UNSET or not text:
        return None
    word = words.get(str(text).lower())
    if word is None:
        raise refusal(f"The {what} {text} is unknown.")
    return word


def _require_super(table: AccountTable, name: str, *, remains_super: bool) -> None:
    has_other_super = any(
        other_name != name and user.is_super and user.user_status == ENABLED for other_name, user in table.users.items()
    )
    if not remains_super and not has_other_super and name in table.users:
        raise refusal("The last super user has to stay.")
