"""Request signatures of ACL 1.0, which 2.0 keeps: HMAC-SHA1 over the values of the extension fields and the body.

Source: ``AclClientRPCHook``, ``AclUtils#combineRequestContent``, ``AclSigner``.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rmq_core.remoting.codes import ROCKETMQ
from rmq_core.remoting.header import Body, RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_VERSION_4_9_3: Final = 399


@dataclass(frozen=True, slots=True)
class Credentials:
    """Access key, secret key and security token of a signer.

    Attributes:
        access_key: the name, sent in the open.
        secret_key: never sent, and never shown.
        security_token: sent in the open if there is one.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(secret_key: str, ext_fields: Mapping[str, str], body: Body) -> str:
    """Compute the signature of a request, in Base64.

    Args:
        secret_key: the signer's.
        ext_fields: all of the request's; a signature among them does not count.
        body: the request's.
    """
    keys = sorted(ext_fields)
    if not "".join(keys).isascii():  # Java's TreeMap orders by UTF-16 code units
        keys.sort(key=lambda key: key.encode("utf-16-be"))
    values = "".join([ext_fields[key] for key in keys if key != SIGNATURE])
    return b64encode(hmac.digest(secret_key.encode(), b"".join((values.encode(), body)), "sha1")).decode()


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Add access key, token and signature to a request's fields.

    Of a binary header empty fields are left out: they arrive as null, whose name Java's brokers sign.
    """
    fields = command.ext_fields
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    if command.serialize_type == ROCKETMQ:
        fields = command.fields = {name: value for name, value in fields.items() if name and value}
    fields[SIGNATURE] = signature(credentials.secret_key, fields, command.body)


def is_signed_by(command: RemotingCommand, credentials: Credentials) -> bool:
    """Tell whether a request is signed with these credentials; takes the same time wherever the two differ."""
    fields = command.ext_fields
    if command.version <= _VERSION_4_9_3 and _UNIQUE_KEY_QUERY in fields:  # set after it was signed
        fields = {name: value for name, value in fields.items() if name != _UNIQUE_KEY_QUERY}
    try:
        expected = signature(credentials.secret_key, fields, command.body)
    except UnicodeEncodeError:  # halves of surrogate pairs, which nobody can have signed
        return False
    same_name = hmac.compare_digest(fields.get(ACCESS_KEY, "").encode(), credentials.access_key.encode())
    return hmac.compare_digest(fields.get(SIGNATURE, "").encode("utf-8", "replace"), expected.encode()) and same_name
