"""A certificate authority for tests, and the certificates that it issues."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """``ca_file``: its own certificate, in ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key, 1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = folder / f"{name}.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, address: str = "127.0.0.1", valid_days: int = 1, valid_minutes: int | None = None
    ) -> dict[str, str]:
        """``cert_file`` and ``key_file`` of a host at ``address``; expired for a day with ``valid_days`` -1.

        ``valid_minutes``: valid only this long, before and after the present time.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key, valid_days, valid_minutes)
            .add_extension(names, False)
            .sign(self._key, hashes.SHA256())
        )
        files = {"cert_file": self._folder / f"{name}.pem", "key_file": self._folder / f"{name}.key"}
        files["cert_file"].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files["key_file"].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        files["key_file"].chmod(0o600)
        return {kind: str(path) for kind, path in files.items()}

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid_days: int, valid_minutes: int | None = None
    ) -> x509.CertificateBuilder:
        days = timedelta(days=3), timedelta(days=valid_days)
        before, after = days if valid_minutes is None else (timedelta(minutes=valid_minutes),) * 2
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - before)
            .not_valid_after(now + after)
        )
