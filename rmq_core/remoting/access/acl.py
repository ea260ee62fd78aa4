"""Request signatures of ACL 1.0 and 2.0: HMAC-SHA1 over the values of the extension fields and the body.

Source: ``AclClientRPCHook``, ``AclUtils#combineRequestContent``, ``AclSigner``.
"""

import hashlib
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hmac import compare_digest
from operator import itemgetter
from typing import Final

from rmq_core.remoting.codes import ROCKETMQ, UNIQUE_KEY_QUERY
from rmq_core.remoting.header import Body, RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
_VERSION_4_9_3: Final = 399
_BLOCK_BYTES: Final = 64  # of SHA-1


@dataclass(frozen=True, slots=True)
class Credentials:
    """Access key, secret key and security token of a signer.

    The access key and the token are sent unencrypted; the secret key is never sent.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(secret_key: str, ext_fields: Mapping[str, str], body: Body) -> str:
    """Compute the signature of a request, in Base64; an existing signature field is skipped."""
    names = tuple(ext_fields)
    values_of = _values_of.get(names)
    if values_of is None:
        values_of = _cache_getter(names)
    inner, outer = _hmac_states(secret_key)
    inner, outer = inner.copy(), outer.copy()
    inner.update("".join(values_of(ext_fields)).encode())
    inner.update(body)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False).decode()


_values_of: Final[dict[tuple[str, ...], Callable[[Mapping[str, str]], Iterable[str]]]] = {}
_MAX_CACHED_GETTERS: Final = 1000  # by the names of fields: requests with one code have the same


def _cache_getter(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    """Cache a getter of field values in signing order: sorting at each request is three times as slow."""
    keys = sorted(name for name in names if name != SIGNATURE)
    if not "".join(keys).isascii():  # Java's TreeMap orders by UTF-16 code units
        keys.sort(key=lambda key: key.encode("utf-16-be"))
    if len(_values_of) >= _MAX_CACHED_GETTERS:
        _values_of.clear()
    getter = itemgetter(*keys) if len(keys) > 1 else lambda fields: [fields[key] for key in keys]
    _values_of[names] = getter
    return getter


@lru_cache(maxsize=256)
def _hmac_states(secret_key: str) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    """Return the inner and outer hash of an HMAC after the key: half of the work for a short request."""
    key = secret_key.encode()
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha1(key, usedforsecurity=False).digest()
    key = key.ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in key) for pad in (0x36, 0x5C))
    return hashlib.sha1(inner, usedforsecurity=False), hashlib.sha1(outer, usedforsecurity=False)


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Add access key, token and signature to a request's fields.

    In a binary header empty fields are left out: Java's brokers read them as null, and sign the text "null".
    """
    fields = command.ext_fields
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    if command.serialize_type == ROCKETMQ:
        fields = command.fields = {name: value for name, value in fields.items() if name and value}
    fields[SIGNATURE] = signature(credentials.secret_key, fields, command.body)


def is_signed_with(command: RemotingCommand, secret_key: str) -> bool:
    """Return True if a request is signed with a secret key, in constant time."""
    fields = command.ext_fields
    if command.version <= _VERSION_4_9_3 and UNIQUE_KEY_QUERY in fields:  # which those clients set after signing
        fields = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    try:
        expected = signature(secret_key, fields, command.body).encode()
    except UnicodeEncodeError:  # lone surrogates, which nobody can have signed
        return False
    return compare_digest(fields.get(SIGNATURE, "").encode("utf-8", "replace"), expected)
