"""Who is told how a run ended: a webhook gets a POST of JSON, a command gets the same on stdin.

Told is told: what went wrong on the way is a problem to be logged, and never changes how the run ended. A webhook's
address may be its secret, path and all, so that messages name its host alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from dataprep import web
from dataprep.errors import public
from dataprep.web import Patience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

    from dataprep.service.job import Notify

PATIENCE = Patience(attempts=3, first_seconds=2.0)
"""With a webhook that cannot be reached, or answers that something is wrong with it."""

ANSWER_SECONDS = 10.0
"""How long a webhook may take to answer, from the beginning of the request."""

COMMAND_SECONDS = 60.0
"""How long a command may take."""

OUTPUT_BYTES = 4096
"""Of what a command that failed has said last, for the message."""

REDIRECTS = 3
"""How often a webhook may send to another address of the same server."""


def tell(notify: Notify, event: Mapping[str, Any], patience: Patience = PATIENCE) -> list[str]:
    """Tell those whom it concerns, if it does.

    Args:
        notify: whom, and of what.
        event: what happened, plain JSON values; ``state`` is how the run ended.
        patience: with the webhook.

    Returns:
        What went wrong, a line each; empty: all were told.
    """
    if event.get("state") not in notify.on:
        return []
    body = json.dumps(event, sort_keys=True).encode()
    problems = []
    if notify.webhook is not None and (problem := _post(notify.webhook, body, patience)):
        problems.append(f"the webhook at {_host(notify.webhook)} was not told: {problem}")
    if notify.command and (problem := _call(notify.command, body)):
        problems.append(public(f"the command {notify.command[0]} was not told: {problem}"))
    return problems


class _LaterError(Exception):
    """Another attempt may go well."""


def _post(url: str, body: bytes, patience: Patience) -> str:
    """Post until it is taken; returns what went wrong, or ""."""
    for attempt in range(1, patience.attempts + 1):
        try:
            return _attempt(url, body)
        except _LaterError as error:
            if attempt == patience.attempts:
                return f"{error}; tried {attempt} times"
        time.sleep(patience.seconds(attempt))
    raise AssertionError("the last attempt returns")


def _attempt(url: str, body: bytes) -> str:
    """One request, on a thread of its own: a server that sends a byte now and then would never time out.

    Returns:
        What went wrong for good, or "".

    Raises:
        _LaterError: it may work another time.
    """
    answers: list[str | Exception] = []
    asked = threading.Thread(target=lambda: answers.append(_request(url, body)), name="webhook", daemon=True)
    asked.start()
    asked.join(ANSWER_SECONDS)
    answer = answers[0] if answers else _LaterError(f"no answer within {ANSWER_SECONDS:g} s")
    if isinstance(answer, Exception):
        raise answer
    return answer


def _request(url: str, body: bytes) -> str | Exception:
    headers = {"Content-Type": "application/json", "User-Agent": "dataprep", "Accept-Encoding": "identity"}
    target = url
    try:
        with web.plain_client() as client:
            for _ in range(REDIRECTS + 1):
                with client.stream("POST", target, content=body, headers=headers, timeout=ANSWER_SECONDS) as answer:
                    status, place = answer.status_code, answer.headers.get("location")
                    said = web.status_of(answer)
                if not (300 <= status < 400 and place):
                    break
                target = urljoin(target, place)
                if _server(target) != _server(url):
                    return f"it sends to another server, {_host(target)}, which is not followed; name that one"
    except web.transport_errors() as error:
        return _LaterError(type(error).__name__)  # its text may name the address
    except web.address_errors():
        return "it has an address that cannot be used"
    if status >= 500 or status in web.TRANSIENT:
        return _LaterError(f"it answers {said}")
    return "" if 200 <= status < 300 else f"it answers {said}"


def _server(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname, parts.port


def _host(url: str) -> str:
    return urlsplit(url).hostname or "an address without a host"


def _call(command: Sequence[str], body: bytes) -> str:
    """Run a command with the event on its stdin; returns what went wrong, or ""."""
    with tempfile.TemporaryFile() as stdin:  # and no pipe: nobody has to read it
        stdin.write(body)
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return f"it cannot be started: {getattr(error, 'strerror', None) or error}"
    assert process.stdout is not None
    said = bytearray()
    reader = threading.Thread(target=_keep_end, args=(process.stdout, said), name="command", daemon=True)
    reader.start()
    try:
        process.wait(COMMAND_SECONDS)
        how = "" if process.returncode == 0 else f"it ended with {_end(process.returncode)}"
    except subprocess.TimeoutExpired:
        how = f"it took more than {COMMAND_SECONDS:g} s and was stopped"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reader.join(1.0)  # what it left behind may hold its output open for ever
    text = " ".join(bytes(said).decode("utf-8", "replace").split())
    return f"{how}: {text}" if how and text else how


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _keep_end(stream: IO[bytes], said: bytearray) -> None:
    with stream:
        while block := os.read(stream.fileno(), 65_536):
            said += block
            del said[:-OUTPUT_BYTES]
