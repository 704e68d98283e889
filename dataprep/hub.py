"""The Hugging Face hub: which commit, which files, where, and what to say when it refuses.

    commit    repository and revision -> 40 hex digits; everything after it asks for this commit
    tree      commit -> files with sizes and checksums
    cache     some small files, in the hub's own cache
    address   hf://datasets/org/name@commit/path -> the address to fetch it from, and the headers for it

All by huggingface_hub's public functions, so that ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE`` and the login of
``hf auth login`` mean what they mean everywhere. Fetching files is `requests`' and `transfer`'s.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from dataprep import web
from dataprep.digests import matches
from dataprep.errors import DataprepError, OutputError, SourceError
from dataprep.web import Pause, TransientError, persist

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

log = logging.getLogger(__name__)

RepoType = Literal["dataset", "model"]


@dataclass(frozen=True)
class Repo:
    """A repository at a revision."""

    id: str
    type: RepoType
    revision: str

    @property
    def page(self) -> str:
        """Its page, for people."""
        from huggingface_hub.constants import ENDPOINT

        return f"{ENDPOINT}/{'datasets/' if self.type == 'dataset' else ''}{self.id}"

    @property
    def url(self) -> str:
        """``hf://[datasets/]org/name@revision``, as `huggingface_hub.HfFileSystem` writes it."""
        kind = "datasets/" if self.type == "dataset" else ""
        return f"hf://{kind}{self.id}@{quote(self.revision, safe='')}"

    def file_url(self, path: str) -> str:
        """The address of a file in it; `address` says where that is."""
        return f"{self.url}/{quote(path)}"


@dataclass(frozen=True)
class RepoFile:
    """A file of a repository: its path, its size, and ``sha256:`` or ``git-sha1:`` of its content."""

    path: str
    num_bytes: int
    checksum: str


def commit(repo: Repo) -> Repo:
    """The same repository, its revision resolved to a commit.

    Raises:
        SourceError: no such repository or revision, no permission, no network.
    """
    if re.fullmatch(r"[0-9a-f]{40}", repo.revision):
        return repo
    info = _json(repo, "GET", f"{_api(repo)}/revision/{quote(repo.revision, safe='')}")[0]
    sha = info.get("sha") if isinstance(info, dict) else None
    if not sha:
        raise SourceError(f"{repo.page} does not say which commit {repo.revision} is")
    return Repo(repo.id, repo.type, sha)


def tree(repo: Repo, folder: str = "") -> list[RepoFile]:
    """All files below a folder; none if there is no such folder.

    Pages are followed at the hub that was asked, whatever origin their links name: a mirror may repeat the original's,
    and the token is not for others.

    Raises:
        SourceError: no permission, no network.
    """
    place = f"{_api(repo)}/tree/{quote(repo.revision, safe='')}{f'/{quote(folder)}' if folder else ''}"
    files: list[RepoFile] = []
    asked: set[str] = set()
    query = "recursive=true"
    while query:
        if query in asked:
            raise SourceError(f"{repo.page}: the listing has no end, the hub repeats a page; check HF_ENDPOINT")
        asked.add(query)
        entries, query = _json(repo, "GET", f"{place}?{query}")
        files += _files(repo, entries)
    return files


def describe(repo: Repo, paths: Iterable[str]) -> list[RepoFile]:
    """Those of the named files that there are.

    Raises:
        SourceError: no such repository, no permission, no network.
    """
    place = f"{_api(repo)}/paths-info/{quote(repo.revision, safe='')}"
    return _files(repo, _json(repo, "POST", place, {"paths": list(paths), "expand": False})[0])


def _files(repo: Repo, entries: Any) -> list[RepoFile]:
    """The files among the entries of an answer."""
    try:
        found = [
            RepoFile(e["path"], e["size"], f"sha256:{e['lfs']['oid']}" if e.get("lfs") else f"git-sha1:{e['oid']}")
            for e in entries
            if e["type"] == "file"
        ]
        for file in found:
            file.path.encode()
    except (TypeError, KeyError, AttributeError, UnicodeEncodeError) as error:
        raise SourceError(f"{repo.page}: the answer is no listing of files; check HF_ENDPOINT") from error
    return found


def _api(repo: Repo) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/api/{repo.type}s/{repo.id}"


def _json(repo: Repo, method: str, url: str, body: dict[str, Any] | None = None) -> tuple[Any, str]:
    """An answer of the hub's API, [] where there is no such folder; and the query of its next page, or ''.

    Our own request: huggingface_hub 2.4 waits for ever on an API that stalls.

    Raises:
        SourceError: the hub refuses, or cannot be reached.
    """
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import build_hf_headers, validate_repo_id

    def ask() -> tuple[Any, str]:
        web.check_online(repo.url)
        with explained(repo), web.transient():
            validate_repo_id(repo.id)
            headers = build_hf_headers(library_name="dataprep")
            response = web.client().request(
                method, url, headers=headers, data=body, timeout=web.timeout_seconds(), follow_redirects=True
            )
            try:
                web.raise_for_status(response)
            except EntryNotFoundError:
                return [], ""
            try:
                answer = response.json()
            except ValueError as error:
                raise TransientError("the answer is no JSON") from error
        link = response.links.get("next", {}).get("url")
        return answer, urlsplit(link).query if link else ""

    return persist(ask, repo.url, Pause())


def cache(repo: Repo, names: Sequence[str]) -> tuple[Repo, Path, list[str]]:
    """Bring small files into the hub's own cache, where transformers and others find them as well; each is checked.

    Args:
        repo: at any revision.
        names: files wanted; those that there are not are left out.

    Returns:
        The repository at its commit, the folder of the files, and which there are.

    Raises:
        SourceError: they cannot be had; offline, they are not in the cache.
    """
    if web.is_offline():
        return _cached(repo, names)
    asked, repo = repo, commit(repo)
    files = describe(repo, names)
    folder = Path()
    for file in files:
        folder = persist(functools.partial(_cache_one, asked, repo, file), repo.file_url(file.path), Pause()).parent
    return repo, folder, [file.path for file in files]


def _cache_one(asked: Repo, repo: Repo, file: RepoFile) -> Path:
    """One file at a commit, in the cache, where it is found offline by the revision that was asked for as well."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    found = try_to_load_from_cache(repo.id, file.path, revision=asked.revision, repo_type=repo.type)
    with explained(repo), web.transient(), _cache_is_writable():
        for revision in (asked.revision, repo.revision):
            path = Path(found) if isinstance(found, str) else None
            if path is None or path.parent.name != repo.revision:
                path = Path(hf_hub_download(repo.id, file.path, repo_type=repo.type, revision=revision))
            if path.parent.name != repo.revision:
                continue  # the branch has moved since, or the client gives what it had
            if matches(path.read_bytes(), file.checksum):
                return path
            path.resolve().unlink(missing_ok=True)  # the client does not check it, and would keep it
            path.unlink(missing_ok=True)
            break
    raise TransientError("what came is not what the listing says")


@contextlib.contextmanager
def _cache_is_writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT):
            raise
        from huggingface_hub.constants import HF_HUB_CACHE

        raise OutputError(f"cannot write to the hub's cache {HF_HUB_CACHE}: {error.strerror}; set HF_HOME") from error


def _cached(repo: Repo, names: Sequence[str]) -> tuple[Repo, Path, list[str]]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    answers = {n: try_to_load_from_cache(repo.id, n, revision=repo.revision, repo_type=repo.type) for n in names}
    found = {name: Path(path) for name, path in answers.items() if isinstance(path, str)}
    unknown = [name for name, path in answers.items() if path is None]
    if found and unknown:  # another tool may have brought some of them only
        log.warning("offline: the cache does not know whether %s has %s", repo.id, ", ".join(unknown))
    if not found:
        raise SourceError(web.offline_message(f"the tokenizer {repo.id} at {repo.revision}") + f" ({HF_HUB_CACHE})")
    folder = next(iter(found.values())).parent
    return Repo(repo.id, repo.type, folder.name), folder, list(found)


def address(url: str) -> tuple[str, dict[str, str]]:
    """Where to fetch a ``hf://`` address from, and the headers for it: the user's token, if there is one.

    The token goes to the hub. It answers with a redirect to a store of files, at another origin, and the client
    sends no token there.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    repo, path = split(url)
    kind = "datasets/" if repo.type == "dataset" else ""
    where = f"{constants.ENDPOINT}/{kind}{repo.id}/resolve/{quote(repo.revision, safe='')}/{path}"
    return where, build_hf_headers(library_name="dataprep") | web.PLAIN


def split(url: str) -> tuple[Repo, str]:
    """``hf://datasets/org/name@commit/path`` -> repository and path, the path still quoted."""
    match = re.fullmatch(r"hf://(datasets/)?([^/]+/[^/@]+)@([^/]+)/(.+)", url)
    assert match, url
    return Repo(match[2], "dataset" if match[1] else "model", match[3].replace("%2F", "/")), match[4]


@contextlib.contextmanager
def explained(repo: Repo, path: str = "") -> Iterator[None]:
    """Turn a refusal of the hub into an error that says what to do.

    Args:
        repo: what was asked about.
        path: of the file that was asked for, if it was one.
    """
    from huggingface_hub import errors

    try:
        yield
    except (TransientError, DataprepError):
        raise
    except errors.LocalEntryNotFoundError as error:  # the client makes this of an answer that may pass
        raise TransientError(_first_line(error)) from error
    except errors.OfflineModeIsEnabled as error:
        raise SourceError(web.offline_message(repo.url)) from error
    except errors.HfHubHTTPError as error:
        raise SourceError(_refusal(repo, path, error)) from error
    except errors.HFValidationError as error:
        raise SourceError(f"{repo.id} is no name of a repository: {_first_line(error)}") from error
    except web.address_errors() as error:  # or an answer that is no JSON
        raise SourceError(
            f"cannot ask {repo.page}: {type(error).__name__}: {_first_line(error)}; check HF_ENDPOINT and HF_TOKEN"
        ) from error


def _refusal(repo: Repo, path: str, error: Any) -> str:
    from huggingface_hub import errors

    token = f"give your token: `hf auth login`, or the variable HF_TOKEN, or the file {_token_path()}"
    if isinstance(error, errors.GatedRepoError):
        return f"{repo.id} is gated: accept its conditions at {repo.page}, then {token}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"the hub has no {repo.type} {repo.id}, or it is private: check the name at {repo.page}; if it is private, "
            f"{token}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo.id} has no revision {repo.revision!r}; see {repo.page}/tree/main"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{repo.id} has no such file: {path}; see {repo.page}/tree/{repo.revision}"
    status = web.status_of(error.response)
    if error.response.status_code in (401, 403):
        return f"the hub refuses {repo.id} ({status}): check the token in HF_TOKEN or {_token_path()}, and {repo.page}"
    return f"the hub refuses {f'{path} of ' if path else ''}{repo.id}: {status}; see {repo.page}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _token_path() -> str:
    from huggingface_hub.constants import HF_TOKEN_PATH

    return str(HF_TOKEN_PATH)
