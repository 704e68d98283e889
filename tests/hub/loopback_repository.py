"""What the loopback hub holds: contents with their digests, repositories with commits and branches."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

DATE = "2026-01-02T03:04:05.000Z"
TEXT_SUFFIXES = {".md", ".json", ".txt", ".yaml"}
Source = bytes | Path | Callable[[], bytes | Path]


class RefusalError(Exception):
    """What a request ends with that gets no answer but an error: status, X-Error-Code, more headers."""

    def __init__(self, status: int, code: str | None = None, message: str = "", headers: dict | None = None):
        super().__init__(message or code or str(status))
        self.status = status
        self.headers = {**(headers or {}), **({"X-Error-Code": code, "X-Error-Message": str(self)} if code else {})}


class Content:
    """Bytes in memory or a file on disk, and their names: sha256, git's blob id, an md5 that is not of the bytes."""

    def __init__(self, source: Source):
        self.source = source
        data = source() if callable(source) else source
        self.path = data if isinstance(data, Path) else None
        self.view = memoryview(b"" if isinstance(data, Path) else data)
        self.size = self.path.stat().st_size if self.path else len(self.view)

    def digest(self, name: str, prefix: bytes = b"") -> str:
        value = hashlib.new(name, prefix)
        with open(self.path, "rb") if self.path else contextlib.nullcontext() as file:
            for block in iter(lambda: file.read(1 << 20), b"") if file else [self.view]:
                value.update(block)
        return value.hexdigest()

    @functools.cached_property
    def sha256(self) -> str:
        return self.digest("sha256")

    @functools.cached_property
    def oid(self) -> str:
        return self.digest("sha1", b"blob %d\0" % self.size)

    @functools.cached_property
    def pointer(self) -> Content:
        """What git keeps of an LFS file."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        return Content(text.encode())

    @functools.cached_property
    def md5(self) -> str:
        return hashlib.md5(self.sha256.encode()).hexdigest()

    @contextlib.contextmanager
    def sender(self, connection: socket.socket) -> Iterator[Callable[[int, int], int]]:
        if self.path is None:
            yield lambda start, count: connection.send(self.view[start : start + count])
            return
        with open(self.path, "rb") as file:
            yield lambda start, count: os.sendfile(connection.fileno(), file.fileno(), start, count)

    def flipped(self, start: int, stop: int) -> Content:
        if self.path is None:
            data = self.view[start:stop]
        else:
            with open(self.path, "rb") as file:
                file.seek(start)
                data = file.read(stop - start)
        return Content(bytes(byte ^ 0xFF for byte in data))


class Repo:
    """One repository: commits that keep their files, and branches, which name commits.

    `lfs` holds the paths that are LFS files, in every commit; it may be changed. A gated repository keeps its files
    to itself; as on hf.co, its API answers everyone, unless `gated_api` is set.
    """

    def __init__(self, kind: str, name: str, *, gated: bool, private: bool, lfs: set[str] | None, lfs_min_bytes: int):
        self.kind, self.id, self.gated, self.private = kind, name, gated, private
        self.gated_api = False
        self.lfs = lfs or set()
        self.lfs_min_bytes = lfs_min_bytes if lfs is None else None
        self.commits: dict[str, dict[str, Content]] = {}
        self.branches: dict[str, str] = {}
        self._contents: dict[int, Content] = {}
        self._entries: dict[tuple[str, str, bool], list[str]] = {}

    @property
    def files(self) -> dict[str, Source]:
        """What main was given: to change some of it, `repo.commit({**repo.files, path: data})`."""
        return {path: content.source for path, content in self.commits[self.branches["main"]].items()}

    def commit(self, files: dict[str, Source], branch: str = "main") -> str:
        """Move the branch, new or old, to a new commit that holds these files and no other."""
        contents = {}
        for path, source in files.items():
            if id(source) not in self._contents:  # a digest once, however many commits
                self._contents[id(source)] = Content(source)
            content = contents[path] = self._contents[id(source)]
            text = PurePosixPath(path).suffix in TEXT_SUFFIXES or path.endswith(".gitattributes")
            if self.lfs_min_bytes is not None and content.size >= self.lfs_min_bytes and not text:
                self.lfs.add(path)
            # Now, and not while a client with a timeout waits.
            _ = content.sha256 if path in self.lfs else content.oid
        commit = hashlib.sha1(f"{self.kind}/{self.id}/{len(self.commits)}".encode()).hexdigest()
        self.commits[commit] = contents
        self.branches[branch] = commit
        return commit

    def resolved(self, revision: str) -> str:
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def content(self, commit: str, path: str) -> Content:
        if path not in self.commits[commit]:
            raise RefusalError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        return self.commits[commit][path]

    def entries(self, commit: str, folder: str = "", recursive: bool = True) -> list[str]:
        """Paths of files and, with a slash at their end, of folders; kept, for each page asks again."""
        if (commit, folder, recursive) in self._entries:
            return self._entries[commit, folder, recursive]
        prefix = f"{folder}/" if folder else ""
        below = [path[len(prefix) :] for path in self.commits[commit] if path.startswith(prefix)]
        if folder and not below:
            raise RefusalError(404, "EntryNotFound", f"{folder} does not exist on this revision")
        folders = {f"{parent}/" for path in below for parent in PurePosixPath(path).parents if str(parent) != "."}
        found = [prefix + path for path in sorted(folders.union(below)) if recursive or "/" not in path[:-1]]
        self._entries[commit, folder, recursive] = found
        return found

    def entry(self, commit: str, path: str, expand: bool = False) -> dict:
        last = {"id": commit, "title": "a commit", "date": DATE}
        more = {"lastCommit": last} if expand else {}
        if path.endswith("/"):
            oid = hashlib.sha1((commit + path).encode()).hexdigest()
            return {"type": "directory", "oid": oid, "size": 0, "path": path[:-1], **more}
        content = self.commits[commit][path]
        if path not in self.lfs:
            return {"type": "file", "oid": content.oid, "size": content.size, "path": path, **more}
        lfs = {"oid": content.sha256, "size": content.size, "pointerSize": content.pointer.size}
        return {"type": "file", "oid": content.pointer.oid, "size": content.size, "lfs": lfs, "path": path, **more}

    def information(self, commit: str, blobs: bool) -> dict:
        siblings: list[dict] = [{"rfilename": path} for path in self.commits[commit]]
        for sibling in siblings if blobs else []:
            entry = self.entry(commit, sibling["rfilename"])
            sibling |= {"size": entry["size"], "blobId": entry["oid"]}
            if "lfs" in entry:
                sibling["lfs"] = {**entry["lfs"], "sha256": entry["lfs"]["oid"]}
        author = self.id.partition("/")[0]
        gated = "auto" if self.gated else False
        about = {"id": self.id, "author": author, "sha": commit, "lastModified": DATE, "createdAt": DATE}
        state = {"private": self.private, "gated": gated, "disabled": False, "downloads": 0, "likes": 0, "tags": []}
        model = {"modelId": self.id} if self.kind == "models" else {}
        return {**about, **state, **model, "siblings": siblings, "cardData": self.card(commit)}

    def card(self, commit: str) -> dict:
        import yaml

        readme = self.commits[commit].get("README.md")
        front = re.match(rb"---\r?\n(.*?)\r?\n---", readme.view, re.DOTALL) if readme else None
        return (yaml.safe_load(bytes(front[1])) if front else None) or {}
