"""Settings of access control, by the original's names.

Source: ``AuthConfig``.
"""

from dataclasses import dataclass
from typing import Any, Final

from rmq_core.ha.settings import HaSettings
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.codec import BodyStruct, decode_body
from rmq_core.remoting.settings import setting
from rmq_formats.errors import DecodeError, OptionError

_INNER: Final = "innerClientAuthenticationCredentials"
_FIRST: Final = "initAuthenticationUser"


class _UserText(BodyStruct, frozen=True, kw_only=True):
    username: str
    password: str


class _CredentialsText(BodyStruct, frozen=True, kw_only=True):
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class AccessSettings(HaSettings):
    """Settings of authentication and authorization; names and defaults are Java's.

    Attributes:
        authentication_enabled: whether requests have to be signed by a user that the broker knows.
        authorization_enabled: whether a user's policies are checked, too; requires the former.
        authentication_whitelist: request codes that need neither, separated by commas.
        authorization_whitelist: request codes that need no policies.
        init_authentication_user: ``{"username":"…","password":"…"}``, made a super user if there is none of that name.
        inner_client_authentication_credentials: ``{"accessKey":"…","secretKey":"…"}``, likewise; the broker signs its
            own requests with it, to its master and to name servers.
    """

    authentication_enabled: bool = setting(False)
    authorization_enabled: bool = setting(False)
    authentication_whitelist: str = setting("")
    authorization_whitelist: str = setting("")
    init_authentication_user: str = setting("", is_secret=True)
    inner_client_authentication_credentials: str = setting("", is_secret=True)

    @property
    def own_credentials(self) -> Credentials | None:
        """Credentials of the broker's own requests. Raises OptionError."""
        text = self.inner_client_authentication_credentials
        if not text:
            return None
        credentials = _parse_setting(text, _CredentialsText, _INNER)
        return Credentials(credentials.access_key, credentials.secret_key)

    def check_access(self) -> None:
        """Check that the settings fit together. Raises OptionError."""
        if self.authorization_enabled and not self.authentication_enabled:
            raise OptionError(
                "authorizationEnabled=true without authenticationEnabled=true: everybody could say to be anybody"
            )
        for text, name in (
            (self.authentication_whitelist, "authenticationWhitelist"),
            (self.authorization_whitelist, "authorizationWhitelist"),
        ):
            whitelist(text, name)
        first_users(self)


def whitelist(text: str, name: str) -> frozenset[int]:
    """Parse request codes, separated by commas. Raises OptionError that has the setting's name."""
    codes = [code.strip() for code in text.split(",") if code.strip()]
    invalid = [code for code in codes if not code.isascii() or not code.isdigit()]
    if invalid:
        raise OptionError(f"{name}: no request code: {invalid[0]!r}")
    return frozenset(map(int, codes))


def first_users(settings: AccessSettings) -> list[tuple[str, str]]:
    """Return name and password of the super users in the settings. Raises OptionError."""
    credentials = []
    if settings.init_authentication_user:
        user = _parse_setting(settings.init_authentication_user, _UserText, _FIRST)
        credentials.append((user.username, user.password))
    broker_credentials = settings.own_credentials
    if broker_credentials is not None:
        credentials.append((broker_credentials.access_key, broker_credentials.secret_key))
    if any(not name.strip() or not password for name, password in credentials):
        raise OptionError(f"{_FIRST} or {_INNER}: a name or password is empty")
    return credentials


def _parse_setting(text: str, kind: type[Any], name: str) -> Any:
    try:
        return decode_body(text.encode(), kind)
    except DecodeError:  # whose text could have the secret
        members = ", ".join(f'"{member}":"…"' for member in kind.__struct_encode_fields__)
        raise OptionError(f"{name}: is not JSON of the form {{{members}}}") from None
