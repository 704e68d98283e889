"""`dataprep.remote`: the reference in a process of its own; a real one, killed for real."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataprep.definitions import define, identify
from dataprep.encoders import open_reference
from dataprep.errors import EncodeError, SpecError
from dataprep.parity import NASTY, gate, strings
from dataprep.remote import RemoteReference
from dataprep.specs import TokenizerSpec


def _identity(trained):
    return identify(TokenizerSpec(name="t", type=trained.type, path=str(trained.path)), trained.path)


def _gone(pid: int, seconds: float = 20) -> bool:
    """Whether a process ends within some time; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_answers_as_the_reference_in_this_process(trained):
    local = open_reference(define(trained.type, trained.path), "encode")
    remote = RemoteReference(_identity(trained), "encode")
    assert (remote.name, remote.version) == (local.name, local.version)
    assert remote.added == list(getattr(local, "added", ()))
    for texts in (list(NASTY), [], ["a" * 300_000, ""]):
        mine, right = remote.encode(strings(texts)), local.encode(strings(texts))
        assert mine.ids.tolist() == right.ids.tolist()
        assert mine.offsets.tolist() == right.offsets.tolist()
        assert (mine.ids.dtype, mine.offsets.dtype) == (right.ids.dtype, right.offsets.dtype)
    assert gate(local, remote, strings(["a", "b"])) == len(NASTY) + len(remote.added) + 2


def test_special_strings_stay_text_where_they_shall(bpe):
    plain = open_reference(define(bpe.type, bpe.path), "plain")
    batch = strings(["a<|endoftext|>b"])
    assert RemoteReference(_identity(bpe), "plain").encode(batch).ids.tolist() == plain.encode(batch).ids.tolist()


def test_threads_get_their_own_answers(bpe):
    remote = RemoteReference(_identity(bpe), "encode")
    texts = [f"document {i} " * (i + 1) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: remote.encode(strings([text])).ids.tolist(), texts))
    assert found == bpe.ids(texts)


def test_what_the_library_refuses_is_the_same_error_from_afar(make_tokenizer, byte_json):
    folder = make_tokenizer(model={**byte_json["model"], "merges": ["q\u0100 z"]})
    identity = identify(TokenizerSpec(name="t", type="HuggingFaceTokenizer", path=str(folder)), folder)
    remote = RemoteReference(identity, "encode")
    for _ in range(2):
        with pytest.raises(SpecError, match=r"not a tokenizer\.json"):
            remote.encode(strings(["a"]))


def test_a_tokenizer_that_changed_is_an_error(make_tokenizer):
    folder = make_tokenizer()
    identity = identify(TokenizerSpec(name="t", type="HuggingFaceTokenizer", path=str(folder)), folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(SpecError, match="its sha256 differs"):
        RemoteReference(identity, "encode").encode(strings(["a"]))


def test_a_process_that_was_killed_is_said(bpe):
    remote = RemoteReference(_identity(bpe), "encode")
    remote.encode(strings(["a"]))
    os.kill(remote._process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EncodeError, match=r"the process of the reference tokenizers \S+ ended with code -9; "):
            remote.encode(strings(["a"]))


def test_a_process_that_is_killed_while_it_works_is_said(bpe):
    remote = RemoteReference(_identity(bpe), "encode")
    remote.encode(strings(["a"]))
    os.kill(remote._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(remote.encode, strings(["a"]))
        os.kill(remote._process.pid, signal.SIGKILL)
        with pytest.raises(EncodeError, match="ended with code -9"):
            answer.result(20)


def test_a_terminals_interrupt_does_not_reach_it(bpe):
    remote = RemoteReference(_identity(bpe), "encode")
    assert os.getpgid(remote._process.pid) != os.getpgid(0)


def test_the_process_ends_with_the_object(bpe):
    remote = RemoteReference(_identity(bpe), "encode")
    remote.encode(strings(["a"]))
    pid = remote._process.pid
    del remote
    gc.collect()
    assert _gone(pid)


@pytest.mark.parametrize("busy", [False, True])
def test_the_process_ends_with_its_parent(bpe, busy):
    """However that ends: nothing stays behind on a cluster's nodes."""
    code = (
        "import sys; from pathlib import Path\n"
        "from dataprep.definitions import identify; from dataprep.parity import strings\n"
        "from dataprep.remote import RemoteReference; from dataprep.specs import TokenizerSpec\n"
        f"path = Path({str(bpe.path)!r})\n"
        f"spec = TokenizerSpec(name='t', type={bpe.type!r}, path=str(path))\n"
        "remote = RemoteReference(identify(spec, path), 'encode')\n"
        f"remote.encode(strings(['a'])) if not {busy} else None\n"
        "print(remote._process.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert _gone(pid)
