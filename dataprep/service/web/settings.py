"""What a server was told when it was started."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

LEAST_TOKEN = 16
"""Letters that a token has at least: 16 random ones cannot be guessed through a server that limits tries."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server shows, to whom, and what may be done through it.

    Attributes:
        outputs: the output folders that it shows.
        jobs: the folder of jobs; None: there are none.
        host: the name or address that it binds to.
        port: the same; 0: one that is free.
        token: what proves that somebody may use it; None: whoever reaches it may.
        read_only: nothing can be changed or started through it.
        allowed: folders beside that of the jobs which a job may name.

    Raises:
        SpecError: others could reach the server, and there is no token; or it is too short.
    """

    outputs: tuple[Path, ...]
    jobs: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8642
    token: str | None = None
    read_only: bool = False
    allowed: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.token is None and not self.is_loopback:
            raise SpecError(
                f"--host {self.host} can be reached by others, and there is no token; write one into a file "
                "(openssl rand -hex 32) and name it with --token-file, or set DATAPREP_TOKEN"
            )
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise SpecError(f"the token has less than {LEAST_TOKEN} letters; openssl rand -hex 32 makes a good one")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise SpecError("the token holds letters that no HTTP header can; openssl rand -hex 32 makes a good one")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may mean anything


def read_token(path: Path | None) -> str | None:
    """The token of a file, or of the environment's DATAPREP_TOKEN, which is taken away; None: there is none.

    Raises:
        SpecError: the file cannot be read, or is empty.
    """
    if path is None:
        return os.environ.pop("DATAPREP_TOKEN", None) or None  # what the server starts has no business with it
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the token in {path}: {getattr(error, 'strerror', None) or error}") from error
    if not token:
        raise SpecError(f"{path} is empty; openssl rand -hex 32 > {path} writes a good token")
    return token
