"""Fixtures and settings that every test shares.

Tests import nothing from each other and reach no network. What is too large to ship (real tokenizers, long
texts, outputs of other tools) is looked for in the folder that DATAPREP_TEST_ASSETS names; tests that need it
skip without it.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import io
import ipaddress
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: the first example pays for imports and the building of tables. print_blob: a failure on a machine
# that is gone can be replayed from its log.
settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A suite that a script starts in the background, or with nohup, inherits signals that are ignored, and so would the
# processes that it sends them to.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test marked `alone` waits for the tests of other workers to end, and they wait for it: it measures time."""
    with contextlib.ExitStack() as stack:
        if "PYTEST_XDIST_WORKER" in os.environ:
            folder = Path(item.config.getoption("basetemp")).parent  # the parent of each worker's
            door, room = (stack.enter_context((folder / name).open("w")) for name in ("door.lock", "room.lock"))
            # Who waits for the room stands in the door, so that nobody passes who came later.
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
            fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


STUBS = Path(__file__).parent / "train" / "stubs"

HOSTILE_NAME = 'it\'s a "hostile" n\u00e4me \u2603'


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of large test data, or a skip."""
    value = os.environ.get("DATAPREP_TEST_ASSETS")
    if not value:
        pytest.skip("DATAPREP_TEST_ASSETS names no folder of large test data")
    folder = Path(value)
    if not folder.is_dir():
        raise NotADirectoryError(f"DATAPREP_TEST_ASSETS: expected a folder, found {value!r}")
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty folder below one whose name holds a space, quotes and letters that are not ASCII."""
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    return folder


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What our own loggers said. Others' may speak of what an earlier test left, when Python clears it up."""
    caplog.set_level("INFO", "dataprep")
    return lambda: "\n".join(each.getMessage() for each in caplog.records if each.name.startswith("dataprep"))


@pytest.fixture(scope="session")
def write_nonsense() -> Callable[..., Path]:
    """Writes a JSON lines file of random words; 1 line in 200, where there are `rejects`, is no JSON."""

    def write(path: Path, num_bytes: int, seed: int = 0, rejects: bool = True) -> Path:
        draw, size = random.Random(seed), 0
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(2000)]
        with path.open("w", encoding="utf-8") as file:
            while size < num_bytes:
                size += file.write(json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(0, 300)))}) + "\n")
                size += file.write("no json\n") if rejects and draw.random() < 0.005 else 0
        return path

    return write


@pytest.fixture(scope="session")
def make_training() -> Callable[..., tuple[Any, Any]]:
    """Makes a job of training and its program, as launchers are given them, below a folder.

    The trainer is a script; it gets the prefix, a file that the launcher writes, and `arguments`.
    """

    def make(folder: str, arguments: tuple[str, ...] = (), **changes: dict[str, Any]) -> tuple[Any, Any]:
        from dataprep.train.job import Data, Job, Launch, Parallel, Part, Training
        from dataprep.train.presets import find_preset
        from dataprep.train.program import Program

        prefix, output = f"{folder}/data/sample-gpt2-0a1b2c3d/sample_text_document", f"{folder}/runs/one"
        numbers = {"num_documents": 10, "num_sequences": 10, "num_tokens": 1000}
        train = {"seq_length": 1024, "global_batch_size": 16, "train_iters": 10, "lr": 3e-4, "min_lr": 3e-5}
        train |= {"lr_warmup_iters": 1, "lr_decay_iters": 10, "save": f"{folder}/checkpoints"}
        model, shape = find_preset("gpt3-125m")
        job = Job(
            name="sample-125m",
            backend="megatron",
            profile="core-0.16",
            model=model,
            shape=shape,
            vocab_size=50257,
            tokenizer=None,
            tokenizer_type="HuggingFaceTokenizer",
            tokenizer_path="gpt2",
            data=Data(parts=(Part(prefix=prefix, weight=1.0, dtype="uint16", **numbers),)),
            train=Training(**(train | changes.get("train", {}))),
            parallel=Parallel(**({"gpus_per_node": 2} | changes.get("parallel", {}))),
            launch=Launch(**changes.get("launch", {})),
            output=output,
        )
        arguments = ("--data-path", "1.0", prefix, "--config-file", f"{output}/config.json", *arguments)
        program = {"start": "torchrun", "script": "pretrain.py", "arguments": arguments}
        program |= {"files": {"config.json": '{"steps": 10}\n'}, "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
        return job, Program(**(program | changes.get("program", {})))

    return make


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for torchrun, deepspeed, docker and podman are found first; returns the folder of their records.

    ``trainer.py`` beside them stands in for a trainer: one word of a program's `script`, with `folder` its folder.
    """
    records = tmp_path / "records"
    records.mkdir()
    monkeypatch.setenv("PATH", f"{STUBS}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORDS", str(records))
    return records


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Compares a text with a file of ``train/golden``; with DATAPREP_WRITE_GOLDEN in the environment, writes it."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "train" / "golden" / name
        if os.environ.get("DATAPREP_WRITE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), "read it through, then write it with DATAPREP_WRITE_GOLDEN=1"

    return compare


class Network:
    """Hosts: network namespaces on a bridge without a way out.

    Args:
        tag: what their names begin with.
        subnet: the first three numbers of their addresses.
        number: of hosts.
    """

    def __init__(self, tag: str, subnet: str, number: int) -> None:
        self._subnet, self._switch = subnet, f"{tag}-sw"
        self.names = [f"{tag}-{i}" for i in range(number)]

    def up(self) -> None:
        if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
            pytest.skip("network namespaces need root, iproute2 and unshare")
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            self._ip("netns", "add", name)
            self._ip("link", "add", "v0", "netns", name, "type", "veth", "peer", "name", f"p{i}", "netns", self._switch)
            self._ip("-n", self._switch, "link", "set", f"p{i}", "master", "br0", "up")
            self._ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "v0")
            self._ip("-n", name, "link", "set", "v0", "up")
            self._ip("-n", name, "link", "set", "lo", "up")

    def down(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def address(self, host: int) -> str:
        return f"{self._subnet}.{10 + host}"

    def cut(self, host: int, off: bool = True) -> None:
        """Pull the plug of a host's network, or put it back."""
        self._ip("-n", self._switch, "link", "set", f"p{host}", "down" if off else "up")

    def prefix(self, host: int) -> tuple[str, ...]:
        """What a command has to begin with to run on a host."""
        return ("ip", "netns", "exec", self.names[host])

    @staticmethod
    def _ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


@pytest.fixture(scope="session")
def make_network() -> type[Network]:
    """For tests that need several hosts; a skip, once it is `up`, where they cannot be had."""
    return Network


class NetworkBlockedError(RuntimeError):
    """A test reached for the network. No OSError, so that no code under test takes it for a bad connection."""


def _is_here(host: object) -> bool:
    if host is None or isinstance(host, int):
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name in {"", "localhost", "localhost.localdomain"}:
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python's sockets connect to, bind to and look up this machine only.

    Local sockets and loopback stay open: a Dask cluster lives on them. Libraries that bring sockets of their own
    (ZeroMQ, Rust clients) and child processes are not held; hub clients are told to stay offline.
    """
    if request.node.get_closest_marker("network"):
        return

    def guarded(name: str):
        original = getattr(socket.socket, name)

        def call(self: socket.socket, address, *rest):
            internet = self.family in {socket.AF_INET, socket.AF_INET6}
            # A datagram socket sends nothing when it connects; Dask asks for this machine's own address that way.
            silent = name != "bind" and self.type == socket.SOCK_DGRAM
            if internet and not silent and not _is_here(address[0] or "0.0.0.0"):
                raise NetworkBlockedError(f"{name} to {address!r}; mark the test `network` if it has to")
            return original(self, address, *rest)

        return call

    def getaddrinfo(host, *args, **kwargs):
        if not _is_here(host) and host != socket.gethostname():
            raise NetworkBlockedError(f"look-up of {host!r}; mark the test `network` if it has to")
        return look_up(host, *args, **kwargs)

    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, guarded(name), raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Trained:
    """A tokenizer on disk, and what its own library says: no class of ours stands between.

    Attributes:
        type: Megatron's name.
        path: what `--tokenizer` takes.
        ids: texts -> ids by the reference library, without BOS and EOD; `plain` as in special_text.
    """

    type: str
    path: Path
    ids: Callable[..., list[list[int]]]


def _written_text() -> list[str]:
    """Some 60 KB of lines in several scripts, with code, digits, emoji and runs of spaces; always the same."""
    rng = random.Random(0)
    scripts = (
        ["ka", "lo", "mi", "ter", "sha", "en", "ing", "the", "re", "un"],
        ["при", "вет", "мир", "ов"],
        list("\u65e5\u672c\u8a9e\u4e2d\u6587\u306e\u30c6"),
    )
    words = ["".join(rng.choices(script, k=rng.randint(1, 4))) for script in scripts for _ in range(120)]
    weights = [1 / (1 + i % 120) for i in range(len(words))]
    lines = []
    for i in range(1200):
        line = " ".join(rng.choices(words, weights, k=rng.randint(3, 12)))
        extra = (
            "",
            f"  {i} x {i * 7919}",
            "don't we'll I'VE",
            "def f(x):\n" + " " * 4 * rng.randint(1, 4) + "return x",
            "e\u0301 \U0001f44d\U0001f3fd",
        )
        lines.append(line + rng.choice((" ", "  ", ", ", ".\n\n", " " * rng.randint(3, 16))) + rng.choice(extra))
    return lines


def _by_tokenizers(path: Path) -> Callable[..., list[list[int]]]:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _calling(tokenizer)


def _calling(tokenizer) -> Callable[..., list[list[int]]]:
    def ids(texts: list[str], plain: bool = False) -> list[list[int]]:
        tokenizer.encode_special_tokens = plain
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return ids


def _by_gpt2_files(folder: Path) -> Callable[..., list[list[int]]]:
    from tokenizers.implementations import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return _calling(tokenizer._tokenizer)


def _by_sentencepiece(path: Path) -> Callable[..., list[list[int]]]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda texts, plain=False: model.encode(texts, num_threads=os.cpu_count()) if texts else []


def _byte_level(pre_tokenizer, size: int, specials: list[str]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=not specials))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_written_text(), trainer)
    return tokenizer


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A byte-level BPE like GPT-2's: a folder with tokenizer.json, no BOS, EOD `<|endoftext|>` by its config."""
    from tokenizers import pre_tokenizers

    folder = tmp_path_factory.mktemp("bpe")
    path = folder / "tokenizer.json"
    _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 900, ["<|endoftext|>"]).save(str(path))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>", "bos_token": null}')
    return Trained("HuggingFaceTokenizer", folder, _by_tokenizers(path))


@pytest.fixture(scope="session")
def bos_bpe(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A byte-level BPE like Llama-3's: its split, ignore_merges, a template that adds BOS, added tokens after the rest.

    The last added token, `<tool>`, is no special one.
    """
    from tokenizers import Regex, pre_tokenizers, processors

    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    split = words + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    parts = [
        pre_tokenizers.Split(Regex(split), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer = _byte_level(pre_tokenizers.Sequence(parts), 1000, [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.add_tokens(["<tool>"])
    bos = "<|begin_of_text|>"
    template = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, tokenizer.token_to_id(bos))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    folder = tmp_path_factory.mktemp("bos-bpe")
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|end_of_text|>"}}')
    return Trained("HuggingFaceTokenizer", folder, _by_tokenizers(path))


@pytest.fixture(scope="session")
def pair(bpe: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The vocab.json and merges.txt of `bpe`."""
    import tokenizers

    folder = tmp_path_factory.mktemp("pair")
    tokenizers.Tokenizer.from_file(str(bpe.path / "tokenizer.json")).model.save(str(folder))
    return Trained("GPT2BPETokenizer", folder, _by_gpt2_files(folder))


@pytest.fixture(scope="session")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A SentencePiece BPE with byte fallback; pieces of spaces alone have the score -1e9, as in Llama 2's model."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in _written_text() for line in text.split("\n")),
        model_writer=model,
        vocab_size=900,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    # On the wire a piece is: 0x0a, length, UTF-8, 0x15, float32 score.
    spaces = re.compile(rb"(\x0a(.)((?:\xe2\x96\x81)+)\x15)....", re.DOTALL)
    low = struct.pack("<f", -1e9)
    lowered = spaces.sub(lambda m: m[1] + low if m[2][0] == len(m[3]) else m[0], model.getvalue())
    folder = tmp_path_factory.mktemp("spm")
    (folder / "tokenizer.model").write_bytes(lowered)
    return Trained("Llama2Tokenizer", folder, _by_sentencepiece(folder / "tokenizer.model"))


@pytest.fixture(scope="session")
def written_text() -> list[str]:
    """What the tokenizers of the session were trained on: text that uses their merges."""
    return _written_text()


@pytest.fixture(scope="session", params=["bpe", "bos_bpe", "pair", "spm"])
def trained(request: pytest.FixtureRequest) -> Trained:
    """Each of the four, one after the other: all three types."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session", params=["gpt2-hf", "gpt2-pair", "llama3", "llama2"])
def real(request: pytest.FixtureRequest, assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Each real tokenizer: GPT-2 from both kinds of files, Llama-3, Llama-2 from its tokenizer.model."""
    folder = assets / "tokenizers" / request.param.split("-")[0]
    if request.param == "llama2":
        return Trained("Llama2Tokenizer", folder / "tokenizer.model", _by_sentencepiece(folder / "tokenizer.model"))
    if request.param == "gpt2-pair":
        return Trained("GPT2BPETokenizer", folder / "vocab.json", _by_gpt2_files(folder))
    return Trained("HuggingFaceTokenizer", folder, _by_tokenizers(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def byte_json() -> dict:
    """A tokenizer.json whose ids are the UTF-8 bytes; 256 `<bos>`, 257 `<eod>`, 258 `<pad>` special, 259 `<tool>` not.

    Its template puts `<bos>` first. A fresh copy is `json.loads(json.dumps(...))`.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": 256 + i, "content": text, "special": text != "<tool>", **flags}
        for i, text in enumerate(("<bos>", "<eod>", "<pad>", "<tool>"))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    first, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, text],
            "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [256], "tokens": ["<bos>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


@pytest.fixture
def make_tokenizer(tmp_path: Path, byte_json: dict) -> Callable[..., Path]:
    """Write a folder with the byte tokenizer, changed: `make_tokenizer(eos="<eod>", post_processor=None, ...)`."""
    count = iter(range(1000))

    def make(eos: str | None = "<eod>", **changes) -> Path:
        folder = tmp_path / f"bytes-{next(count)}"
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps({**byte_json, **changes}))
        if eos is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        return folder

    return make


@pytest.fixture
def write_texts(tmp_path: Path) -> Callable[..., Path]:
    """Write texts as JSON lines and return the path: `write_texts(["a", "b"], "corpus.jsonl")`."""

    def write(texts: list[str], name: str = "corpus.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write any pair, also one that our own writer would not: `make_pair([[7, 8], [9]], boundaries=[0, 2])`.

    Without boundaries every sequence is a document.
    """
    import numpy as np

    from dataprep.indexed import CODES, Header, bin_path, idx_path, write_index
    from dataprep.storage import AtomicFile

    def make(sequences: list[list[int]], boundaries=None, dtype: str = "uint16", prefix: Path | None = None) -> Path:
        prefix = prefix or tmp_path_factory.mktemp("pair") / "p"
        lengths = np.array([len(ids) for ids in sequences], "<i4")
        bounds = np.arange(len(sequences) + 1) if boundaries is None else np.array(boundaries, "<i8")
        np.array([token for ids in sequences for token in ids], dtype).tofile(bin_path(prefix))
        with AtomicFile(idx_path(prefix), durable=False) as file:
            write_index(
                file, Header(CODES[dtype], len(lengths), len(bounds)), lambda: [lengths], [bounds.astype("<i8")]
            )
        return prefix

    return make


class InlineCluster:
    """Does units in the caller's thread, so that the k-th call is the same call in every run."""

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __enter__(self) -> InlineCluster:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, function, items):
        self.added = collections.deque()
        for item in items:
            function(item, lambda progress: None)
            yield item
            while self.added:
                other, added = self.added.popleft()
                other(added, lambda progress: None)
                yield added

    def add(self, function, item):
        self.added.append((function, item))


@pytest.fixture
def mounted() -> Iterator[Callable[[Path, str], Path]]:
    """A function that mounts a tmpfs on a folder, with options; undone at the end."""
    folders: list[Path] = []

    def mount(folder: Path, options: str) -> Path:
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "dataprep-test", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        folders.append(folder)
        return folder

    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a tmpfs needs root")
    yield mount
    for folder in folders:
        subprocess.run(["umount", str(folder)], capture_output=True, check=False)


@pytest.fixture
def inline_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Dask: one unit after the other, in plan order."""
    monkeypatch.setattr("dataprep.runner.Cluster", InlineCluster)
