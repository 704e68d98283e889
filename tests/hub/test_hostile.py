"""What a hostile hub, a hostile disk or a hostile user found, and must not find again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

import dataprep
from dataprep import fetching, web
from dataprep.connections import Connections
from dataprep.errors import SourceError, SpecError
from dataprep.layout import RawFolder
from dataprep.locks import Users
from dataprep.parts import Wanted
from dataprep.planning import resolve
from dataprep.transfer import Fetcher
from dataprep.web import Patience, Pause


def lines(*texts, field="text"):
    return "".join(json.dumps({field: text}) + "\n" for text in texts).encode()


def within(seconds, work):
    """What a call gives, or a failed test: it hangs."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    return results[0]


@pytest.mark.parametrize("limit", [None, 350])
def test_many_small_files_that_are_not_kept_need_no_more_room_than_there_is(here, tmp_path, limit):
    """Files of a group are waited for together; the room is that of a few files."""
    here.add(
        "datasets", "org/name", {f"{i:03d}.jsonl": lines(*[f"text {i} {n}" for n in range(10)]) for i in range(60)}
    )
    settings = ["runtime.keep_raw=false", "runtime.connections=2", "runtime.workers=1"]

    result = within(60, lambda: dataprep.run("hf:org/name", "sample", tmp_path, limit=limit, settings=settings))

    assert len(dataprep.open_dataset(result.prefix)) == (limit or 600)
    assert not list(tmp_path.glob("raw/*/files/*.jsonl"))


def test_a_file_that_vanishes_while_others_wait_for_room_is_fetched(here, tmp_path):
    from dataprep.stages.download import Downloads

    here.add("datasets", "org/name", {f"{i:03d}.jsonl": lines("x" * 100) for i in range(40)})
    request = resolve(
        "hf:org/name", "sample", tmp_path, settings=["runtime.keep_raw=false", "runtime.connections=2"], workers=1
    )
    files, folder = request.recipe.files, RawFolder(Path(request.listing.raw))

    def work():
        with Downloads(folder, files, request.recipe.reader, request.runtime, lambda n: None) as downloads:
            downloads.start(range(20))
            downloads.wait(range(20))
        with Downloads(folder, files, request.recipe.reader, request.runtime, lambda n: None) as downloads:
            downloads.start(range(40))
            Path(files[5].path).unlink()
            for i in range(40):
                downloads.start([i])
                downloads.wait([i])
                downloads.drop([i])
        return True

    assert within(60, work)


@pytest.fixture
def no_more_threads():
    """To be called: from then on the machine starts none, for there is no room for the stack of one."""
    before = threading.stack_size()
    yield lambda: threading.stack_size(1 << 47)
    threading.stack_size(before)


def test_a_machine_that_starts_no_more_threads_ends_all_waiting(here, tmp_path, no_more_threads):
    """Not only that for the file whose turn it was."""
    from dataprep.stages.download import Downloads

    here.add("datasets", "org/name", {f"{i}.jsonl": lines("x") for i in range(4)})
    request = resolve("hf:org/name", "sample", tmp_path, settings=["runtime.keep_raw=false"], workers=1)
    files, folder = request.recipe.files, RawFolder(Path(request.listing.raw))
    reader, runtime, go, errors = request.recipe.reader, request.runtime, threading.Event(), []
    with Downloads(folder, files, reader, runtime, lambda n: None) as downloads:
        downloads.ahead_bytes = 0  # so that none is fetched before somebody waits for it

        def wait():
            go.wait()
            try:
                downloads.wait(range(3))
            except SourceError as error:
                errors.append(str(error))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        downloads.start(range(3))
        no_more_threads()
        go.set()
        waiting.join(60)
        assert not waiting.is_alive(), "it hangs"
        assert errors[0].startswith("cannot fetch files: can't start new thread; raise the limit on processes")
        assert [str(error) for error in downloads.failures()] == errors * 3
        with pytest.raises(SourceError, match="cannot fetch files: can't start new thread"):
            downloads.start([3])
    with pytest.raises(SourceError, match="cannot fetch files: can't start new thread"):
        Downloads(folder, files, reader, runtime, lambda n: None).__enter__()
    with Users(folder.in_use).alone() as alone:
        assert alone


def test_a_server_that_gives_too_little_and_refuses_the_rest_is_given_up(here, tmp_path):
    url = here.plain("/a.bin", b"x" * 50_000)
    here.fault("status", "*a.bin", side="plain", status=416, times=-1)
    folder = RawFolder(tmp_path / "raw")
    with Connections(1) as connections:
        fetcher = Fetcher(folder, connections, Pause(), lambda n: None, Patience(attempts=3, first_seconds=0.001))
        with pytest.raises(SourceError, match="in a row"):
            fetcher.fetch(Wanted("a.bin", url, 60_000, None))
    assert len(here.requests) <= 4


def test_what_is_set_wins_over_what_was_guessed_when_offline(here, tmp_path, monkeypatch):
    from huggingface_hub import constants

    here.add("datasets", "org/name", {"a.jsonl": b'{"title": "TITLE", "text": "TEXT"}\n'})
    dataprep.run("hf:org/name", "sample", tmp_path, settings=["reader.text=title"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    result = dataprep.run("hf:org/name", "sample", tmp_path, settings=["reader.text=text"])
    assert dataprep.decode(result.prefix, 0) == "TEXT<|endoftext|>"


def test_the_sha256_of_first_use_is_held(here, tmp_path):
    """A plain file states no checksum: what came first is what it is."""
    url = here.plain("/a.jsonl", lines("hello"), etag=None)
    (file,) = fetching.download(url, tmp_path).files
    Path(file.path).write_bytes(lines("HELLO"))
    assert Path(fetching.download(url, tmp_path).files[0].path).read_bytes() == lines("hello"), "fetched again"
    Path(file.path).unlink()
    here.plain("/a.jsonl", lines("HELLO"), etag=None)
    with pytest.raises(SourceError, match="not what it was when it was first fetched, though it has the same size"):
        fetching.download(url, tmp_path)


def test_a_part_of_another_boot_is_not_trusted_where_nothing_proves_it(here, tmp_path):
    url = here.plain("/a.bin", b"x" * 50_000)
    folder, want = RawFolder(tmp_path / "raw"), Wanted("a.bin", url, 50_000, None)
    folder.parts.mkdir(parents=True)
    left = folder.parts / f"{folder.part(want.name, want.identity)}elsewhere-17-0a1b2c3d"
    left.write_bytes(bytes(30_000))
    os.utime(left, (1, 1))
    with Connections(1) as connections:
        Fetcher(folder, connections, Pause(), lambda n: None).fetch(want)
    assert (folder.files / "a.bin").read_bytes() == b"x" * 50_000
    assert not list(folder.parts.iterdir()), "nobody would come back for it"


def test_addresses_that_would_share_a_name_are_refused(here, tmp_path):
    urls = [here.plain("/a.jsonl", lines("x")) + f"?part={i}" for i in range(2)]
    with pytest.raises(SpecError, match=r"are both called a.jsonl; make two corpora of them"):
        fetching.download(urls, tmp_path)


def test_a_new_commit_fetches_only_what_is_new(here, tmp_path):
    files = {f"{i}.jsonl": lines(f"text {i}") for i in range(3)}
    repo = here.add("datasets", "org/name", files)
    fetching.download("hf:org/name", tmp_path, settings=["reader.text=text"])
    served = here.served()
    repo.commit({**files, "README.md": b"# New\n", "2.jsonl": lines("other")})

    listing = fetching.download("hf:org/name", tmp_path, settings=["reader.text=text"])

    assert here.served() - served == len(lines("other")) + len(b"# New\n"), "and the card, to read it"
    assert [Path(file.path).read_bytes() for file in listing.files][2] == lines("other")


def test_a_server_that_ignores_ranges_is_not_read_whole_for_a_look(here, tmp_path):
    url = here.plain("/a.jsonl", lines(*["some text"] * 500_000))
    here.fault("ignore_range", "*a.jsonl", side="plain", times=-1)
    resolve(url, "sample", tmp_path)
    assert here.served() < 10_000_000


def test_a_fetched_file_that_is_not_what_its_name_says_fails_every_time(here, tmp_path):
    here.add("datasets", "org/name", {"a.parquet": lines("x")})
    for _ in range(2):
        with pytest.raises(SourceError, match=r"expected parquet \(none\), found jsonl"):
            fetching.download("hf:org/name", tmp_path, settings=["reader.text=text"])


def test_empty_files_of_a_repository_are_no_documents(here, tmp_path):
    here.add("datasets", "org/name", {"a.jsonl": b"", "b.jsonl": lines("x")})
    result = dataprep.run("hf:org/name", "sample", tmp_path)
    assert [file.name for file in result.manifest.recipe.files] == ["b.jsonl"]


def test_no_signature_is_told_or_published(here, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "BRIEF", web.Patience(attempts=2, first_seconds=0.001))
    here.add("datasets", "org/name", {"a.parquet": b"PAR1" + bytes(100_000)})
    here.fault("status", "*a.parquet", side="cdn", status=404, times=-1)
    with pytest.raises(SourceError) as error:
        resolve("hf:org/name", "sample", tmp_path)
    assert "Signature" not in str(error.value)
    url = here.plain("/b.jsonl", lines("x")) + "?X-Amz-Signature=secret"
    result = dataprep.run(url, "sample", tmp_path)
    assert "secret" not in (Path(result.prefix).parent / "manifest.json").read_text()


def test_the_next_page_is_asked_of_the_hub_itself(here, tmp_path, monkeypatch):
    """A mirror may repeat the links of the original; the token is for the mirror."""
    from huggingface_hub import constants

    here.page_size = 2
    here.add("datasets", "org/name", {f"{i}.jsonl": lines("x") for i in range(7)})
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "ENDPOINT", here.url.replace("127.0.0.1", "localhost"))
    assert len(resolve("hf:org/name", "sample", tmp_path).recipe.files) == 7
    assert {request.host.split(":")[0] for request in here.requests if request.authorization} == {"localhost"}


def test_where_the_first_lines_do_not_tell_the_default_holds(here, tmp_path):
    long = {"a.jsonl": lines("x" * 400_000), "b.jsonl": lines("y")}
    here.add("datasets", "org/name", long)
    assert resolve("hf:org/name", "sample", tmp_path).recipe.reader.text == "text"
    here.add("datasets", "org/packed", {"a.jsonl.gz": b"no gzip at all"})
    with pytest.raises(SourceError, match=r"a.jsonl.gz: expected jsonl \(gzip\)|found none"):
        fetching.download("hf:org/packed", tmp_path)


def test_a_card_may_write_globs_its_own_way(here, tmp_path):
    card = b"---\nconfigs: [{config_name: x, data_files: ['./d/{a,b}.jsonl']}]\n---\n"
    here.add("datasets", "org/name", {"README.md": card, **{f"d/{n}.jsonl": lines(n) for n in "abc"}})
    assert [f.name for f in resolve("hf:org/name", "sample", tmp_path).recipe.files] == ["d/a.jsonl", "d/b.jsonl"]
    here.add("datasets", "org/gone", {"README.md": card, "e.jsonl": lines("x")})
    with pytest.raises(SpecError, match=r"org/gone holds no file of d/a.jsonl, d/b.jsonl; see http"):
        resolve("hf:org/gone", "sample", tmp_path)


def test_settings_without_effect_are_refused(here, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines("x"))
    with pytest.raises(SpecError, match=r"runtime.keep_raw has no effect: the corpus a is here already"):
        resolve(str(tmp_path / "a.jsonl"), "sample", tmp_path / "out", settings=["runtime.keep_raw=false"])
    with pytest.raises(SpecError, match=r"--set policy.\*: has no effect on a download"):
        fetching.download("hf:org/name", tmp_path, settings=["policy.bos=never"])
    with pytest.raises(SpecError, match=r"runtime.keep_raw=false: what is downloaded only to be removed"):
        fetching.download("hf:org/name", tmp_path, settings=["runtime.keep_raw=false"])


def test_an_endpoint_or_a_token_that_cannot_be_sent_says_which(here, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_\u00e9")
    with pytest.raises(SourceError, match="check HF_ENDPOINT and HF_TOKEN"):
        resolve("hf:org/name", "sample", tmp_path)
    monkeypatch.delenv("HF_TOKEN")
    for endpoint in ("http://[::1", "", "huggingface.co"):
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        with pytest.raises(SourceError, match="check HF_ENDPOINT and HF_TOKEN"):
            resolve("hf:org/name", "sample", tmp_path)


def test_without_a_network_the_rest_is_not_tried(here, tmp_path, monkeypatch):
    from dataprep import transfer

    monkeypatch.setattr(transfer, "Patience", lambda: Patience(attempts=2, first_seconds=0.001))
    here.add("datasets", "org/name", {f"{i:03d}.jsonl": lines(f"{i}") for i in range(60)})
    here.fault("status", "*", side="cdn", status=503, times=-1)
    settings = ["reader.text=text", "runtime.connections=2"]
    with pytest.raises(SourceError, match=r"503 .*; and \d+ other files failed"):
        fetching.download("hf:org/name", tmp_path, settings=settings)
    assert len([r for r in here.requests if r.cdn]) < 30


@pytest.mark.parametrize("fault", ["close", "reset", "html", 429, 500, 503])
def test_a_listing_that_fails_is_asked_again(here, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(web, "BRIEF", web.Patience(attempts=4, first_seconds=0.001))
    here.page_size = 2
    here.add("datasets", "org/name", {f"{i}.jsonl": lines("x") for i in range(7)})
    options = {"status": fault} if isinstance(fault, int) else {}
    injected = here.fault("status" if options else fault, "*/tree/*", side="api", times=2, **options)

    assert len(resolve("hf:org/name", "sample", tmp_path).recipe.files) == 7
    assert injected.fired == 2
