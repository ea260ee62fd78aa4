"""Settings of Hadoop's S3A for tasks that write the files of Delta tables at ``s3a://`` themselves.

Spark's writer writes the files if S3A has settings without an equivalent in ``pyarrow.fs``, such as encryption.

Source: ``org.apache.hadoop.fs.s3a.Constants`` of Hadoop 3.5.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.fs as pafs

_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_CENTRAL: Final = "s3.amazonaws.com"
# Settings that change what is written, how it is signed, or where it goes.
_LEFT_TO_SPARK: Final = (
    "encryption.algorithm", "server-side-encryption-algorithm", "acl.default", "create.storage.class", "proxy.host",
    "assumed.role.arn", "custom.signers", "signing-algorithm", "accesspoint.arn", "delegation.token.binding",
)  # fmt: skip
_KEYS: Final = frozenset({"SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"})
# Where there are no keys in the configuration, these look where ``pyarrow.fs`` looks.
_ENVIRONMENT: Final = frozenset({"EnvironmentVariableCredentialsProvider", "IAMInstanceCredentialsProvider"})


@dataclass(frozen=True, slots=True)
class S3Connection:
    """Opens a bucket's object store, by arguments of ``S3FileSystem``; see ``files.Connect``."""

    settings: tuple[tuple[str, Any], ...] = field(repr=False)

    def __call__(self) -> pafs.FileSystem:
        return pafs.S3FileSystem(**dict(self.settings))


def connection(files: Any) -> S3Connection | None:
    """Return how tasks open the object store of a Hadoop file system; None if Spark's writer has to write."""
    if str(files.getClass().getName()) != _CLASS:
        return None
    conf = files.getConf()

    def setting(name: str) -> str:
        return str(conf.getTrimmed(f"fs.s3a.{name}", ""))

    is_plain = not any(map(setting, _LEFT_TO_SPARK)) and setting("requester.pays.enabled") != "true"
    if not is_plain or setting("multipart.uploads.enabled") == "false":
        return None
    credentials = _credentials(conf, setting("aws.credentials.provider"))
    endpoint = setting("endpoint")
    region = setting("endpoint.region") or _region(str(files.getUri().getHost()), endpoint)
    if credentials is None or region is None:
        return None
    arguments: dict[str, Any] = {**credentials, "region": region}
    if endpoint not in {"", _CENTRAL}:
        scheme, is_given, server = endpoint.rpartition("://")
        arguments["endpoint_override"] = server.rstrip("/")
        arguments["scheme"] = (
            scheme if is_given else "http" if setting("connection.ssl.enabled") == "false" else "https"
        )
        arguments["force_virtual_addressing"] = setting("path.style.access") != "true"
    return S3Connection(tuple(sorted(arguments.items())))


def _credentials(conf: Any, providers: str) -> dict[str, str] | None:
    """Return the keys; empty if each machine has its own; None for other providers."""
    kinds = {name.strip().rpartition(".")[2] for name in providers.split(",") if name.strip()}
    if not kinds <= _KEYS | _ENVIRONMENT:
        return None
    keys = {
        name: text
        for name, setting in (("access_key", "access.key"), ("secret_key", "secret.key"))
        if (text := _secret(conf, setting))
    }
    if len(keys) == 2 and kinds & _KEYS:
        token = _secret(conf, "session.token")
        return {**keys, **({"session_token": token} if token else {})}
    return {} if kinds & _ENVIRONMENT and not keys else None


def _secret(conf: Any, name: str) -> str:
    """Read a setting that may be in one of Hadoop's credential files."""
    password = conf.getPassword(f"fs.s3a.{name}")
    return "" if password is None else "".join(password)


def _region(bucket: str, endpoint: str) -> str | None:
    """Find the region of a bucket of Amazon's; other servers accept any region."""
    if endpoint not in {"", _CENTRAL}:
        return "us-east-1"
    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError:
        return None
