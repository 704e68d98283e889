"""Who has logged in: cookies that any server with the same token believes, and tries that are counted.

A session is a random number, the second it ends, and a code over both, made with a key from the token: nothing is kept,
so a server can be started again, or a second one can stand beside it, and nobody has to log in again. Without a token
everybody has a session of their own: it proves nothing but that a form was made for the one who sends it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION_SECONDS = 12 * 3600
"""How long a login lasts: a working day."""

TRIES = 10
"""Wrong tokens that an address may send in `TRY_SECONDS`."""

TRY_SECONDS = 300.0

MOST_ADDRESSES = 10_000
"""How many addresses are remembered; what is beyond is forgotten, the oldest first."""


@dataclass(frozen=True, slots=True)
class Session:
    """One who may use the pages.

    Attributes:
        cookie: what the browser sends.
        csrf: what every form holds, and no other site can know.
        fresh: whether the browser does not have the cookie yet.
    """

    cookie: str
    csrf: str
    fresh: bool = False


class Sessions:
    """Makes sessions and recognizes them.

    Args:
        token: that a login needs; None: there is no login.
        clock: seconds since 1970, as `time.time`.
    """

    def __init__(self, token: str | None, clock: Callable[[], float] = time.time) -> None:
        self._token, self._clock = token, clock
        self._key = hmac.digest(token.encode(), b"dataprep session", "sha256") if token else secrets.token_bytes(32)

    def new(self) -> Session:
        """A session that begins now."""
        text = f"{int(self._clock()) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        cookie = f"{text}.{self._code(text)}"
        return Session(cookie, self._csrf(cookie), fresh=True)

    def find(self, cookie: str | None) -> Session | None:
        """The session of a cookie, or None: it is none of ours, or it is over."""
        text, _, code = (cookie or "").rpartition(".")
        end = text.partition(".")[0]
        if not same(code, self._code(text)) or not end.isdecimal() or int(end) < self._clock():
            return None
        return Session(cookie or "", self._csrf(cookie or ""))

    def is_token(self, text: str) -> bool:
        """Whether a text is the token, found out in the same time wherever they differ."""
        return self._token is not None and same(text, self._token)

    def _code(self, text: str) -> str:
        return hmac.new(self._key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()

    def _csrf(self, cookie: str) -> str:
        return self._code(f"csrf {cookie}")


def same(one: str, other: str) -> bool:
    """Whether two texts are equal; how long it takes tells nothing of where they differ."""
    return hmac.compare_digest(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))


@dataclass
class Tries:
    """Counts wrong tokens by the address that they came from.

    Attributes:
        clock: seconds that only grow.
    """

    clock: Callable[[], float] = time.monotonic
    _wrong: dict[str, list[float]] = field(default_factory=dict)

    def seconds_left(self, address: str) -> int:
        """How long an address has to wait before it may try again; 0: it may."""
        times = [time for time in self._wrong.get(address, []) if time > self.clock() - TRY_SECONDS]
        return int(times[-TRIES] + TRY_SECONDS - self.clock()) + 1 if len(times) >= TRIES else 0

    def wrong(self, address: str) -> None:
        """An address sent a wrong token."""
        now = self.clock()
        times = [time for time in self._wrong.pop(address, []) if time > now - TRY_SECONDS]
        self._wrong[address] = [*times, now][-TRIES:]
        if len(self._wrong) > MOST_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
