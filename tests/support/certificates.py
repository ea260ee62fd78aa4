"""Certificates for tests of TLS: an authority, and what it signs; keys are made anew each time."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY_PASSWORD = "key-password-🔑"


@dataclass(frozen=True, slots=True)
class Signed:
    """Files of a certificate.

    Attributes:
        cert: PEM of the certificate.
        key: PEM of its private key.
    """

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own is in ``cert``."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _built(name, self._key, name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.cert = directory / f"{name}.pem"
        self.cert.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, subject: str, *names: str, has_password: bool = False, from_day: int = -1) -> Signed:
        """Make a key and a certificate that is good for these hosts' names and addresses, for two days."""
        key = ec.generate_private_key(ec.SECP256R1())
        extensions = [_hosts(names)] if names else []
        signed = _built(subject, key, self._name, self._key, *extensions, from_day=from_day)
        files = Signed(self._directory / f"{subject}.pem", self._directory / f"{subject}.key")
        files.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if has_password:
            encryption = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
        pkcs8 = serialization.PrivateFormat.PKCS8  # what Java reads
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, encryption))
        return files


def _hosts(names: tuple[str, ...]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(
        [x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names]
    )


def _built(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
    from_day: int = -1,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=from_day))
        .not_valid_after(now + timedelta(days=from_day + 2))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(signer, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
