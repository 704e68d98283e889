"""How the loopback hub answers a request: what hf.co would say, unless a fault is due."""

from __future__ import annotations

import errno
import fcntl
import http.server
import json
import re
import socket
import struct
import termios
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from loopback_repository import Content, RefusalError, Repo

ANSWERS = {"status", "html", "redirect_loop"}  # in place of what was asked for
DROPS = {"close", "reset", "stall"}  # of the connection
RANGES = {"ignore_range", "wrong_range", "lying_range"}
CHANGES = {"short", "corrupt"}
EMPTY = Content(b"")


@dataclass
class Request:
    """One line of the server's log; `body_bytes` and `status` are there before the client has the bytes."""

    method: str
    path: str
    query: str
    host: str
    range: str | None
    authorization: str | None
    side: str  # api, resolve, cdn, plain
    file: str = ""  # the path in its repository, or of a plain file; for data only
    status: int = 0
    body_bytes: int = 0
    data: bool = False  # the body is a file's
    cdn: bool = False


def byte_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Start and end of `bytes=a-b`, `a-`, `-n`; None for all else, which HTTP has a server ignore."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if not found or found[0] == "bytes=-":
        return None
    if not found[1]:
        start, stop = size - min(int(found[2]), size), size
    else:
        start, stop = int(found[1]), min(int(found[2] or size) + 1, size)
    if start >= stop:
        raise RefusalError(416, None, "Range Not Satisfiable", {"Content-Range": f"bytes */{size}"})
    return start, stop


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else 40 ms for each answer
    server: Any  # LoopbackHub, which imports this module

    def do_GET(self):
        path, _, query = self.path.partition("?")
        # Split first: a slash in a revision or a name comes quoted.
        parts = [unquote(part) for part in path.split("/")[1:]]
        told = self.headers.get
        side = "plain" if unquote(path) in self.server.plain_files else parts[0]
        side = side if side in {"plain", "api", "cdn"} else "resolve"
        side = "resolve" if parts[:2] == ["api", "resolve-cache"] else side
        self.query = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        self.asked = Request(
            self.command,
            unquote(path),
            query,
            told("Host", ""),
            told("Range"),
            told("Authorization"),
            side,
            cdn=side == "cdn",
        )
        self.posted = self.rfile.read(int(told("Content-Length") or 0))
        self.server.requests.append(self.asked)
        fault = self.server.take(self.asked, ANSWERS)
        try:
            if fault:
                self.go_wrong(fault)
            elif parts[0] == "loop":
                self.reply(302, {"Location": self.path})
            else:
                {"api": self.api, "cdn": self.cdn, "resolve": self.resolve, "plain": self.plain}[side](parts)
        except RefusalError as error:
            self.reply_json({"error": str(error)}, error.headers, error.status)

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.do_GET()

    def go_wrong(self, fault):
        if fault.what == "html":
            page = b"<!DOCTYPE html><html><body>Back soon.</body></html>"
            self.reply(200, {"Content-Type": "text/html; charset=utf-8"}, Content(page))
        elif fault.what == "redirect_loop":
            self.reply(302, {"Location": "/loop"})
        else:
            raise RefusalError(fault.status, None, "as told by the test", fault.headers)

    # --- who may have what

    def allowed(self) -> bool:
        return (self.asked.authorization or "").removeprefix("Bearer ") in self.server.tokens

    def repository(self, kind: str, parts: list[str], files: bool) -> tuple[Repo, list[str]]:
        for length in (2, 1):
            repo = self.server.repos.get((kind, "/".join(parts[:length])))
            if repo and (self.allowed() or not repo.private):
                if repo.gated and (files or repo.gated_api) and not self.allowed():
                    raise RefusalError(403 if self.asked.authorization else 401, "GatedRepo", "Access is restricted")
                return repo, parts[length:]
        raise RefusalError(404 if self.asked.authorization else 401, "RepoNotFound", "Repository not found")

    # --- files

    def resolve(self, parts: list[str]):
        cached = parts[:2] == ["api", "resolve-cache"]
        parts = parts[2:] if cached else parts
        kind, parts = (parts[0], parts[1:]) if parts[0] in {"datasets", "models"} else ("models", parts)
        repo, parts = self.repository(kind, parts, files=True)
        parts = ["resolve", *parts] if cached else parts
        if parts[0:1] != ["resolve"] or len(parts) < 3:
            raise RefusalError(404, None, "Not found")
        commit, path = repo.resolved(parts[1]), "/".join(parts[2:])
        content = repo.content(commit, path)
        self.asked.file = path
        headers = {"X-Repo-Commit": commit}
        if path in repo.lfs:
            target = f"/cdn/{kind}/{repo.id}/{commit}/{path}"
            here = self.asked.host.rpartition(":")[0]
            other = "127.0.0.1" if here == "localhost" else "localhost"
            query = urlencode({"Signature": self.server.sign(target)})
            headers |= {"X-Linked-Etag": f'"{content.sha256}"', "X-Linked-Size": str(content.size)}
            self.reply(302, {**headers, "Location": f"http://{other}:{self.server.port}{quote(target)}?{query}"})
        elif self.server.resolve_cache and not cached:
            target = quote(f"/api/resolve-cache/{kind}/{repo.id}/{commit}/{path}")
            self.reply(307, {**headers, "ETag": f'"{content.oid}"', "Location": target})
        else:
            self.reply_data(content, {**headers, "ETag": f'"{content.oid}"'})

    def cdn(self, parts: list[str]):
        path, good = self.server.signatures.get(self.query.get("Signature", ""), ("", 0))
        if path != self.asked.path or time.monotonic() > good:
            raise RefusalError(403, None, "AccessDenied")
        for (kind, name), repo in list(self.server.repos.items()):
            prefix = f"/cdn/{kind}/{name}/"
            if path.startswith(prefix):
                commit, _, self.asked.file = path[len(prefix) :].partition("/")
                content = repo.commits[commit][self.asked.file]
                return self.reply_data(content, {"ETag": f'"{content.md5}"', "Cache-Control": "public"})
        raise RefusalError(404, None, "NoSuchKey")

    def plain(self, parts: list[str]):
        self.asked.file = self.asked.path
        content, headers = self.server.plain_files[self.asked.path]
        self.reply_data(content, headers)

    def reply_data(self, content: Content, headers: dict[str, str]):
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
        condition = self.headers.get("If-Range")
        ignored = self.command != "GET" or condition not in {None, headers.get("ETag"), headers.get("Last-Modified")}
        asked = None if ignored else byte_range(self.asked.range, content.size)
        self.asked.data = self.command == "GET"
        if asked is None:
            return self.reply(200, headers, content)
        start, stop = first, _ = asked
        length = stop - start
        fault = self.server.take(self.asked, RANGES) if length < content.size else None
        if fault and fault.what == "ignore_range":
            return self.reply(200, headers, content)
        if fault:
            start = start - min(fault.shift, start) if start else min(fault.shift, content.size - length)
            first = start if fault.what == "wrong_range" else first
        return self.reply(206, headers, content, start, start + length, first)

    # --- the API

    def api(self, parts: list[str]):
        if parts[1] == "whoami-v2":
            if not self.allowed():
                raise RefusalError(401, None, "Invalid username or password.")
            token = {"displayName": "test", "role": "read"}
            return self.reply_json({"type": "user", "name": "tester", "auth": {"accessToken": token}, "orgs": []})
        if parts[1] not in {"datasets", "models"}:
            raise RefusalError(404, None, "Not found")
        repo, rest = self.repository(parts[1], parts[2:], files=False)
        if rest == ["refs"]:
            return self.reply_json(self.refs(repo))
        verb, revision, *path = rest or ("revision", "main")
        commit = repo.resolved(revision)
        if verb == "revision":
            return self.reply_json(repo.information(commit, self.flag("blobs")), {"X-Repo-Commit": commit})
        if verb == "tree":
            return self.tree(repo, commit, "/".join(path))
        if verb == "paths-info":
            return self.paths_info(repo, commit)
        raise RefusalError(404, None, "Not found")

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in {"1", "true"}

    def refs(self, repo: Repo) -> dict:
        found: dict[str, list] = {"branches": [], "converts": [], "tags": [], "pullRequests": []}
        folders = {"refs/convert/": "converts", "refs/pr/": "pullRequests"}
        for branch, commit in repo.branches.items():
            folder = next((folder for folder in folders if branch.startswith(folder)), "refs/heads/")
            name = branch.removeprefix(folder)
            ref = {"name": name, "ref": folder + name, "targetCommit": commit}
            found[folders.get(folder, "branches")].append(ref)
        return found

    def tree(self, repo: Repo, commit: str, folder: str):
        paths = repo.entries(commit, folder, self.flag("recursive"))
        begin = int(self.query.get("cursor", 0))
        end = begin + min(self.server.page_size, int(self.query.get("limit", self.server.page_size)))
        headers = {"X-Repo-Commit": commit}
        if end < len(paths):
            query = urlencode({**self.query, "cursor": end})
            headers["Link"] = f'<http://{self.asked.host}{self.path.partition("?")[0]}?{query}>; rel="next"'
        self.reply_json([repo.entry(commit, path, self.flag("expand")) for path in paths[begin:end]], headers)

    def paths_info(self, repo: Repo, commit: str):
        if "json" in self.headers.get("Content-Type", ""):
            posted = json.loads(self.posted)
            paths, expand = posted["paths"], posted.get("expand")
        else:
            form = parse_qs(self.posted.decode())
            paths, expand = form.get("paths", []), form.get("expand", [""])[0].lower() == "true"
        there = set(repo.entries(commit))
        named = [name for path in paths for name in (path, f"{path}/") if name in there]
        self.reply_json([repo.entry(commit, path, bool(expand)) for path in named], {"X-Repo-Commit": commit})

    # --- onto the wire

    def reply_json(self, value, headers: dict[str, str] | None = None, status: int = 200):
        headers = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        self.reply(status, headers, Content(json.dumps(value, default=str).encode()))

    def reply(
        self,
        status: int,
        headers: dict[str, str],
        content: Content = EMPTY,
        start: int = 0,
        stop: int | None = None,
        first: int | None = None,
    ):
        """Answer with content[start:stop]; `first` is where the headers say that it starts, None for no range."""
        if fault := self.server.take(self.asked, DROPS):
            return self.drop(fault)
        stop = content.size if stop is None else stop
        fault = None if self.command == "HEAD" else self.server.take(self.asked, DROPS | CHANGES, stop - start)
        if fault and fault.what == "short":
            stop = start + fault.at
        self.asked.status = status
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(stop - start)}.items():
            self.send_header(name, value)
        if first is not None:
            self.send_header("Content-Range", f"bytes {first}-{first + stop - start - 1}/{content.size}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        at = start + fault.at if fault else stop
        with self.server.body():
            self.send_content(content, start, at)
            if fault and fault.what == "corrupt":
                end = min(at + 16, stop)
                flipped = content.flipped(at, end)
                self.send_content(flipped, 0, flipped.size)
                self.send_content(content, end, stop)
        return self.drop(fault) if fault and fault.what in DROPS else None

    def send_content(self, content: Content, start: int, stop: int):
        limited = self.asked.data
        with content.sender(self.connection) as send:
            while start < stop:
                count = self.server.turn(stop - start) if limited else stop - start
                # Counted before, corrected after: whoever has a byte finds it counted.
                self.asked.body_bytes += count
                sent = 0
                try:
                    while sent < count and (step := send(start + sent, count - sent)):
                        sent += step
                finally:
                    self.asked.body_bytes -= count - sent
                if sent < count:
                    raise OSError(errno.EIO, "the file became shorter", str(content.path))
                start += count

    def drop(self, fault):
        """End the connection in the middle: by FIN, or by RST once the client's side has all that was sent."""
        self.close_connection = True
        if fault.what == "stall":
            self.server.closing.wait(fault.seconds)
        if fault.what != "reset":
            return
        deadline = time.monotonic() + 5
        while self.unacknowledged() and time.monotonic() < deadline:
            self.server.closing.wait(0.001)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def unacknowledged(self) -> int:
        return struct.unpack("i", fcntl.ioctl(self.connection, termios.TIOCOUTQ, bytes(4)))[0]

    def log_message(self, *arguments):
        """Quiet: the log is LoopbackHub.requests."""
