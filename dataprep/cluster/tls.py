"""Temporary certificates, so that only who can read the run's private folder can speak to its scheduler or workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dataprep.storage import explain

if TYPE_CHECKING:
    from pathlib import Path


def make_certificate() -> tuple[str, str]:
    """A new key and a self-signed certificate for all roles, as PEM; Dask's own, valid for a year."""
    from distributed.security import Security

    security = Security.temporary()
    return security.tls_worker_key, security.tls_worker_cert


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
