"""How dataprep talks HTTP: whose client, when to try again, how long to wait.

The client is huggingface_hub's: proxies, certificates, ``HF_HUB_DOWNLOAD_TIMEOUT`` and a factory that a site has set
with `huggingface_hub.set_client_factory` hold for every request made here, also for those to other hosts. Tokens are
added by `hub`, to requests to the hub only.
"""

from __future__ import annotations

import contextlib
import email.utils
import functools
import importlib
import logging
import math
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dataprep.errors import Cancelled, SourceError, public

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

log = logging.getLogger(__name__)

T = TypeVar("T")

TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524, 529}
"""Answers that a later request may not get."""

PLAIN = {"Accept-Encoding": "identity"}
"""Headers of a request for a file: compressed on the way, it would have another size, and no ranges."""


@dataclass(frozen=True)
class Patience:
    """How often and how long.

    Attributes:
        attempts: failures in a row, without a new byte between them, before giving up.
        first_seconds: the wait after the first failure; it doubles from one to the next.
        most_seconds: the longest wait, unless the server asks for more.
        asked_seconds: the longest wait that a server may ask for.
    """

    attempts: int = 8
    first_seconds: float = 1.0
    most_seconds: float = 60.0
    asked_seconds: float = 900.0

    def seconds(self, failures: int) -> float:
        """The wait after this many failures, spread so that those who failed together do not come back together."""
        return min(self.most_seconds, self.first_seconds * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


BRIEF = Patience(attempts=4)
"""For requests about what is there: somebody waits, and a machine without network should hear of it soon."""


class TransientError(Exception):
    """What failed may work when it is tried again.

    Args:
        reason: for the message.
        seconds: how long the server asks to wait.
    """

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Pause:
    """Waiting that all threads share: when a server asks one of them to wait, it means all.

    As a context manager, leaving it stops all who wait, and who come to wait.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.stop = stop or threading.Event()
        self._until = 0.0

    def wait(self, seconds: float = 0.0) -> None:
        """Wait, and until the time that a server asked for.

        Raises:
            Cancelled: `stop` was set.
        """
        until = time.monotonic() + seconds
        while (left := max(until, self._until) - time.monotonic()) > 0:
            if self.stop.wait(left):
                break
        self.check()

    def check(self) -> None:
        """Go on at once.

        Raises:
            Cancelled: `stop` was set.
        """
        if self.stop.is_set():
            raise Cancelled("stopped; run the same command again to go on: what was fetched is kept")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()

    def ask(self, seconds: float) -> None:
        """Let nobody go on before this many seconds have passed."""
        self._until = max(self._until, time.monotonic() + seconds)


def client() -> Any:
    """huggingface_hub's HTTP client."""
    from huggingface_hub import get_session

    return get_session()


def plain_client() -> Any:
    """A client of the same package that is not the hub's: without its tokens, and also used offline. To be closed."""
    return _package().Client(timeout=None, follow_redirects=False)


@functools.cache
def _package() -> Any:
    """The HTTP package behind huggingface_hub, which has another name in each of its major versions."""
    from huggingface_hub.errors import HfHubHTTPError

    return importlib.import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def transport_errors() -> tuple[type[Exception], ...]:
    """Everything that the client raises when a connection fails."""
    return (_package().RequestError, _package().StreamError)


def address_errors() -> tuple[type[Exception], ...]:
    """What the client raises of an address or a header that cannot be sent."""
    return (ValueError, _package().InvalidURL, _package().UnsupportedProtocol)


def is_offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` or ``--offline`` forbids the network."""
    from huggingface_hub.constants import is_offline_mode

    return bool(is_offline_mode())


def check_online(what: str) -> None:
    """Make sure that the network may be used.

    Raises:
        SourceError: it may not, and `what` is missing.
    """
    if is_offline():
        raise SourceError(offline_message(what))


def offline_message(what: str) -> str:
    """What to say of something that would have to be fetched."""
    return f"offline, and {what} is not here; run once without --offline and HF_HUB_OFFLINE"


def timeout_seconds() -> float:
    """How long to wait for the next byte, by ``HF_HUB_DOWNLOAD_TIMEOUT``."""
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    return float(HF_HUB_DOWNLOAD_TIMEOUT)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by ``Retry-After`` (seconds or a date) or ``RateLimit`` (as the hub sends it), or None."""
    value = headers.get("retry-after", "").strip()
    if value:
        try:
            seconds = float(value)
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                seconds = math.nan
        if not math.isnan(seconds):
            return max(0.0, seconds)
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    return limit.reset_in_seconds + 1.0 if limit is not None and limit.remaining == 0 else None


def raise_for_status(response: Any) -> None:
    """Raise what the hub's client makes of an answer that is an error."""
    from huggingface_hub.utils import hf_raise_for_status

    if response.status_code >= 400:
        response.read()
    hf_raise_for_status(response)


def status_of(response: Any) -> str:
    """What an answer says, without its address: that may hold a signature."""
    return f"{response.status_code} {response.reason_phrase}".strip()


@contextlib.contextmanager
def transient() -> Iterator[None]:
    """Turn what may pass into a TransientError: broken connections, and answers like 429 and 503."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except address_errors():
        raise
    except transport_errors() as error:
        if "header value" in str(error):  # which it quotes
            raise SourceError("a request cannot be sent: is there a control character in HF_TOKEN?") from None
        where = hint = ""
        if type(error).__name__ in ("ConnectError", "ConnectTimeout", "ProxyError"):
            request = getattr(error, "_request", None)
            where = f"at {request.url.host} " if request is not None else ""
            hint = " (--offline makes do with what is here)"
        raise TransientError(f"{type(error).__name__} {where}{error}{hint}".strip()) from error
    except HfHubHTTPError as error:
        response = error.response
        if response.status_code not in TRANSIENT:
            raise
        raise TransientError(status_of(response), asked_wait(response.headers)) from error


def persist(call: Callable[[], T], what: str, pause: Pause, patience: Patience | None = None) -> T:
    """Call until it does not raise `TransientError`.

    Args:
        call: what to do.
        what: names it in messages.
        pause: waits.
        patience: how often; None: `BRIEF`.

    Raises:
        SourceError: it failed too often.
        Cancelled: the pause was stopped.
    """
    failures = 0
    while True:
        pause.wait()
        try:
            return call()
        except TransientError as error:
            failures += 1
            give_up_or_wait(error, what, failures, pause, patience or BRIEF)


def give_up_or_wait(error: TransientError, what: str, failures: int, pause: Pause, patience: Patience) -> None:
    """Wait before the next attempt.

    Raises:
        SourceError: there is to be none.
        Cancelled: the pause was stopped.
    """
    asked = error.seconds
    if failures >= patience.attempts or (asked is not None and asked > patience.asked_seconds):
        often = f"{failures} times in a row" if failures > 1 else "once"
        waits = f" and asks to wait {asked:.0f} s" if asked is not None and asked > patience.asked_seconds else ""
        raise SourceError(
            f"cannot fetch {what}: {error}; failed {often}{waits}. Run the same command again: what was fetched is kept"
        ) from error
    if asked is not None:
        pause.ask(asked)
    seconds = max(asked or 0.0, patience.seconds(failures))  # a server, or a wrong clock, may ask for none
    log.info("%s: %s; trying again in %.0f s", public(what), error, seconds)
    pause.wait(seconds)
