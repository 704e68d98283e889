"""Temporary certificates, so that only who can read the run's private folder can speak to its scheduler or workers."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dataprep.storage import explain

if TYPE_CHECKING:
    from pathlib import Path


VALID = timedelta(days=365)
"""How long a certificate holds, counted from when it was made."""

SKEW = timedelta(days=1)
"""How far the clocks of machines may be apart."""


def make_certificate() -> tuple[str, str]:
    """A new key (ECDSA, P-256) and a self-signed certificate for all roles, as PEM.

    As Dask's ``Security.temporary()``, but for its beginning: Dask's is refused by nodes whose clocks are behind. Whose
    name is on it is not looked at (Dask switches ``check_hostname`` off): who has the key is one of us.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dataprep")])
    now = datetime.now(UTC).replace(microsecond=0)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


def tls_settings(key: str, cert: str) -> dict[str, Any]:
    """Dask's settings for TLS and nothing else, by the paths of key and certificate."""
    roles = ("scheduler", "worker", "client")
    return {
        "distributed.comm.default-scheme": "tls",
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": cert,
        **{f"distributed.comm.tls.{role}.key": key for role in roles},
        **{f"distributed.comm.tls.{role}.cert": cert for role in roles},
    }


def write_certificate(folder: Path) -> dict[str, Any]:
    """Make a certificate in a private folder; returns Dask's settings for it.

    Raises:
        OutputError: the file system refuses.
    """
    paths = folder / "key.pem", folder / "cert.pem"
    with explain(folder, "write a certificate in"):
        for path, text in zip(paths, make_certificate(), strict=True):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(text)
    return tls_settings(*map(str, paths))
