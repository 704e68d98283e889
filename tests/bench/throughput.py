"""How fast is dataprep: side by side, in one go, against the engine alone and two usual pipelines.

    row              what the clock holds
    dataprep         the whole process from a cold start: imports, reading, encoding, merge, verify, manifest
    engine parallel  gigatoken's encode_batch(parallel=True), text already in memory, caches cold
    engine threads   the same on 8 MiB slices, one tokenizer per thread, parallel=False
    plain            the whole process of tokenizers + json + multiprocessing, on a prefix of the input
    datatrove        the whole process of its MegatronDocumentTokenizer, on the same prefix

Rows alternate, and ratios are taken within one repeat, so that a noisy machine cancels; medians are printed.
MB are 10^6 UTF-8 bytes of document text, not of JSON. No figure is asserted; equal work is: the tokens in each
.bin must be the engine's tokens plus one EOD per document. Only the standard library is imported up here,
because this file is also run by interpreters that lack the rest (see ``--child``).
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import shutil
import site
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROWS = ("dataprep", "engine parallel", "engine threads", "plain", "datatrove")
CHOICES = ("dataprep", "engine", "plain", "datatrove")
SUFFIXES = (
    ".py", ".pyi", ".txt", ".md", ".rst", ".h", ".hpp", ".c", ".html", ".css", ".js", ".mjs", ".ts",
    ".po", ".pm", ".pl", ".tcl", ".sh", ".xml", ".json", ".yaml", ".toml",
)  # fmt: skip
MAX_FILE_BYTES = 2_000_000
MAX_PIECE_BYTES = 100_000
SLICE_BYTES = 8 << 20
ENGINE_CHUNK_BYTES = 500_000_000
ITEM_BYTES = {4: 4, 8: 2}
MISSING_EXIT = 69
PACKAGES = ("gigatoken", "tokenizers", "pyarrow", "awkward", "numpy", "dataprep-llm")
Row = dict[str, Any]


# -- the corpus


def _texts(path: Path) -> Iterator[str]:
    """The documents of a .jsonl or .jsonl.zst file."""
    if path.suffix == ".zst":
        import io

        import zstandard

        with path.open("rb") as raw:
            for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8"):
                yield json.loads(line)["text"]
        return
    with path.open("rb") as lines:
        yield from (json.loads(line)["text"] for line in lines if line.strip())


def _text_files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix.lower() in SUFFIXES and not path.is_symlink() and path.is_file():
                    yield path


def _read_text(path: Path) -> str | None:
    """The file's text, or None where it is too large, unreadable, blank or not UTF-8 text."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text or not text.strip() else text


def pieces(text: str, limit: int = MAX_PIECE_BYTES) -> Iterator[str]:
    """Cut a text into parts of at most ``limit`` UTF-8 bytes, after a line end where there is one."""
    data = text.encode()
    start = 0
    while len(data) - start > limit:
        end = data.rfind(b"\n", start, start + limit) + 1
        if end <= start:
            end = start + limit
            while data[end] & 0xC0 == 0x80:
                end -= 1
        yield data[start:end].decode()
        start = end
    yield data[start:].decode()


def collect(roots: Iterable[Path], mix: Path | None, size: int, path: Path) -> None:
    """Write about ``size`` bytes of distinct texts: all of ``mix``, the rest from files under ``roots``.

    The order is that of the content hashes: it mixes the kinds and does not depend on where the files lie.
    Writes less where there is not enough. ``mix`` is held in memory.
    """
    files: dict[bytes, Path] = {}
    for file in _text_files(roots):
        text = _read_text(file)
        if text is not None:
            files.setdefault(_digest(text.encode()), file)
    mixed = {_digest(text.encode()): text for text in (_texts(mix) if mix else ()) if text.strip()}
    size -= sum(len(text.encode()) for text in mixed.values())
    chosen: dict[bytes, Path | str] = dict(mixed)
    for digest in sorted(files.keys() - mixed.keys()):
        if size <= 0:
            break
        chosen[digest] = files[digest]
        size -= files[digest].stat().st_size
    seen = set()
    with path.open("wb") as out:
        for _, source in sorted(chosen.items(), key=lambda item: item[0]):
            for text in [source] if isinstance(source, str) else pieces(_read_text(source) or ""):
                line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
                if text.strip() and _digest(line) not in seen:
                    seen.add(_digest(line))
                    out.write(line)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def grow(source: Path, size: int, path: Path) -> Row:
    """Write about ``size`` bytes of the lines of ``source``: in order once, then again, each time in another order.

    Returns:
        The description of the file, with the share of its text that repeats earlier documents.
    """
    starts, text_bytes, seen, at = [], [], set(), 0
    with source.open("rb") as lines:
        for line in lines:
            if line.strip():
                text = json.loads(line)["text"].encode()
                starts.append((at, len(line), _digest(text)))
                text_bytes.append(len(text))
            at += len(line)
    if not starts:
        raise SystemExit(f"{source}: no documents")
    row: Row = {"path": str(path), "bytes": 0, "documents": 0, "text_bytes": 0, "unique_bytes": 0}
    turn = 0
    with source.open("rb") as lines, path.open("wb") as out:
        while row["bytes"] < size:
            order = range(len(starts)) if not turn else _shuffled(len(starts), turn)
            for index in order:
                lines.seek(starts[index][0])
                out.write(lines.read(starts[index][1]).rstrip(b"\n") + b"\n")
                row["bytes"] += starts[index][1]
                row["documents"] += 1
                row["text_bytes"] += text_bytes[index]
                row["unique_bytes"] += text_bytes[index] if starts[index][2] not in seen else 0
                seen.add(starts[index][2])
                if row["bytes"] >= size:
                    break
            turn += 1
    return {**row, "repeated": 1 - row["unique_bytes"] / max(1, row["text_bytes"])}


def _shuffled(count: int, turn: int) -> list[int]:
    return sorted(range(count), key=lambda index: _digest(b"%d %d" % (turn, index)))


def describe(path: Path) -> Row:
    """Count what is in a JSONL file; reading it also warms the page cache for every row alike."""
    documents = text_bytes = 0
    unique: dict[bytes, int] = {}
    for text in map(str.encode, _texts(path)):
        documents += 1
        text_bytes += len(text)
        unique[_digest(text)] = len(text)
    if not text_bytes:
        raise SystemExit(f"{path}: no text")
    row: Row = {"path": str(path), "bytes": path.stat().st_size, "documents": documents, "text_bytes": text_bytes}
    unique_bytes = sum(unique.values())
    return {**row, "unique_bytes": unique_bytes, "repeated": 1 - unique_bytes / text_bytes}


def default_roots() -> list[Path]:
    """Where text lies on most machines: Python's own files, then the system's."""
    roots = [sysconfig.get_path("stdlib"), *site.getsitepackages(), "/usr/share", "/usr/lib", "/usr/include"]
    return [Path(root) for root in roots if Path(root).is_dir()]


# -- measuring one process


class MemorySampler(threading.Thread):
    """Samples a process tree: the largest sum of resident memory, and of its anonymous part.

    Resident memory counts a page shared by two processes twice and mapped files too; the anonymous part neither
    mapped files. One process's own high-water mark (VmHWM) also counts, so that a short spike is not missed.
    Reads /proc, hence zeros where there is none.
    """

    def __init__(self, pid: int, interval_seconds: float = 0.03) -> None:
        super().__init__(daemon=True)
        self.pid, self.interval_seconds, self.done = pid, interval_seconds, threading.Event()
        self.peak_bytes = self.peak_anonymous_bytes = 0

    def run(self) -> None:
        while not self.done.wait(self.interval_seconds):
            states = [_memory(pid) for pid in _tree(self.pid)]
            total = sum(state.get("VmRSS", 0) for state in states)
            highest = max((state.get("VmHWM", 0) for state in states), default=0)
            self.peak_bytes = max(self.peak_bytes, total, highest)
            anonymous = sum(state.get("RssAnon", 0) + state.get("RssShmem", 0) for state in states)
            self.peak_anonymous_bytes = max(self.peak_anonymous_bytes, anonymous)


def _tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, ValueError):
            continue
    return found


def _memory(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(("Vm", "Rss")))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def measure(command: list[str], scratch: Path) -> Row:
    """Run a command to its end. CPU is user + system of it and of all its descendants.

    Descendants that outlive their parent (a fork server does) come to us, see ``adopt_orphans``, and are waited for
    after the clock has stopped.
    """
    os.sync()
    with (scratch / "stdout").open("wb") as out, (scratch / "stderr").open("wb") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        sampler = MemorySampler(process.pid)
        sampler.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    sampler.done.set()
    sampler.join()
    return {
        "wall_seconds": wall,
        "cpu_seconds": usage.ru_utime + usage.ru_stime + _wait_for_orphans(),
        "peak_bytes": sampler.peak_bytes,
        "peak_anonymous_bytes": sampler.peak_anonymous_bytes,
        "largest_process_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "exit_code": process.returncode,
        "stdout": (scratch / "stdout").read_text(errors="replace").splitlines(),
        "stderr": (scratch / "stderr").read_text(errors="replace").splitlines()[-20:],
    }


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux's PR_SET_CHILD_SUBREAPER)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _wait_for_orphans(seconds: float = 5.0) -> float:
    cpu, deadline = 0.0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu
        cpu += usage.ru_utime + usage.ru_stime if pid else 0.0
        time.sleep(0 if pid else 0.02)
    print("warning: a process was left behind; its CPU time is not counted", file=sys.stderr)
    return cpu


# -- the rows that run in a process of their own: this file with --child


def child_engine(spec: Row) -> Row:
    """The engine alone. Reads about 500 MB of text at a time, before the clock of that part starts."""
    import awkward  # noqa: F401  before the clock starts
    import gigatoken

    count = spec["workers"] if spec["variant"] == "threads" else 1
    encoders = [gigatoken.Tokenizer(spec["tokenizer"]) for _ in range(count)]
    total: Row = {"wall_seconds": 0.0, "cpu_seconds": 0.0, "tokens": 0, "documents": 0, "prefix_tokens": None}
    for offsets, content in _arrow_parts(Path(spec["input"])):
        wall, cpu = time.perf_counter(), time.process_time()
        if count > 1 or spec["variant"] == "threads":
            tokens, ends = _encode_slices(encoders, offsets, content), None
        else:
            result = encoders[0].encode_batch(_as_awkward(offsets, content), parallel=True)
            ends = result.layout.offsets.data
            tokens = int(ends[-1] - ends[0])
        total["wall_seconds"] += time.perf_counter() - wall
        total["cpu_seconds"] += time.process_time() - cpu
        if ends is not None and not total["documents"]:
            total["prefix_tokens"] = int(ends[min(spec["prefix_documents"], len(ends) - 1)] - ends[0])
        total["tokens"] += tokens
        total["documents"] += int((offsets[1:] > offsets[:-1]).sum())
    return total


def _arrow_parts(path: Path) -> Iterator[tuple[Any, Any]]:
    """The offsets and UTF-8 bytes of a JSONL file's texts, as numpy views of Arrow buffers, in large parts."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.json as pj

    schema = pa.schema([("text", pa.large_string())])
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with path.open("rb") as file:
        while block := file.read(ENGINE_CHUNK_BYTES):
            block += file.readline()
            reading = pj.ReadOptions(block_size=len(block) + 1)
            column = pj.read_json(pa.BufferReader(block), reading, parsing).column("text").combine_chunks()
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            _, offsets, content = array.buffers()
            yield np.frombuffer(offsets, np.int64, len(array) + 1), np.frombuffer(content, np.uint8)


def _as_awkward(offsets: Any, content: Any) -> Any:
    """An awkward array of strings on the given buffers, without a copy (``ak.from_arrow`` copies)."""
    import awkward as ak

    chars = ak.contents.NumpyArray(content, parameters={"__array__": "char"})
    return ak.Array(ak.contents.ListOffsetArray(ak.index.Index64(offsets), chars, parameters={"__array__": "string"}))


def _encode_slices(encoders: list[Any], offsets: Any, content: Any) -> int:
    """Encode slices of about 8 MiB, one encoder per thread. Returns the number of tokens."""
    import numpy as np

    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], SLICE_BYTES)).tolist()
    cuts = sorted({*cuts, 0, len(offsets) - 1})
    todo = deque(itertools.pairwise(cuts))
    counts: list[int] = []

    def work(encoder: Any) -> None:
        while True:
            try:
                first, last = todo.popleft()
            except IndexError:
                return
            start, end = int(offsets[first]), int(offsets[last])
            texts = _as_awkward(offsets[first : last + 1] - start, content[start:end])
            ends = encoder.encode_batch(texts, parallel=False).layout.offsets.data
            counts.append(int(ends[-1] - ends[0]))

    threads = [threading.Thread(target=work, args=(encoder,)) for encoder in encoders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) != len(cuts) - 1:
        raise RuntimeError("an encoding thread failed")
    return sum(counts)


_plain: dict[str, Any] = {}


def _plain_start(tokenizer_file: str, eod: str) -> None:
    import tokenizers

    _plain["tokenizer"] = tokenizers.Tokenizer.from_file(tokenizer_file)
    _plain["eod"] = _plain["tokenizer"].token_to_id(eod)


def _plain_encode(line: str) -> list[int]:
    text = json.loads(line)["text"]
    return [*_plain["tokenizer"].encode(text, add_special_tokens=False).ids, _plain["eod"]]


def child_plain(spec: Row) -> Row:
    """A pool that encodes line by line in the manner of Megatron's preprocess_data, and Python lists for the index."""
    import multiprocessing

    import numpy as np

    _plain_start(spec["tokenizer_file"], spec["eod"])
    dtype, code = (np.uint16, 8) if _plain["tokenizer"].get_vocab_size() < 65500 else (np.int32, 4)
    lengths: list[int] = []
    boundaries = [0]
    output = Path(spec["output"], "plain")
    pool = multiprocessing.Pool(spec["workers"], _plain_start, (spec["tokenizer_file"], spec["eod"]))
    with pool, open(spec["input"], encoding="utf-8") as lines, output.with_suffix(".bin").open("wb") as out:
        for ids in pool.imap(_plain_encode, lines, 32):
            out.write(np.array(ids, dtype=dtype).tobytes())
            lengths.append(len(ids))
            boundaries.append(len(lengths))
        pool.close()
        pool.join()
    pointers = [0]
    for length in lengths[:-1]:
        pointers.append(pointers[-1] + length * np.dtype(dtype).itemsize)
    with output.with_suffix(".idx").open("wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(boundaries)))
        out.write(np.array(lengths, np.int32).tobytes() + np.array(pointers, np.int64).tobytes())
        out.write(np.array(boundaries, np.int64).tobytes())
    return {}


def child_datatrove(spec: Row) -> Row:
    """The pipeline that datatrove offers for this: one file and one task per worker."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

    writer = MegatronDocumentTokenizer(
        spec["output"], tokenizer_name_or_path=spec["tokenizer_file"], eos_token=spec["eod"]
    )
    workers = spec["workers"]
    pipeline = [JsonlReader(spec["inputs"]), writer]
    LocalPipelineExecutor(pipeline, tasks=workers, workers=workers, logging_dir=spec["logs"]).run()
    return {"version": importlib.metadata.version("datatrove")}


CHILDREN: dict[str, Callable[[Row], Row]] = {
    "engine": child_engine,
    "plain": child_plain,
    "datatrove": child_datatrove,
}


def run_child(text: str) -> int:
    """Do the row that ``text`` (JSON) asks for; the last line on stdout is its result as JSON."""
    spec = json.loads(text)
    try:
        result = CHILDREN[spec["kind"]](spec)
    except ImportError as error:
        print(error.name or error)
        return MISSING_EXIT
    print(json.dumps(result))
    return 0


# -- one run of one row


class Bench:
    """The options of a session and the scratch folder that its runs share."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        self.args, self.scratch = args, scratch
        self.output = scratch / "output"

    def run(self, row: str, tokenizer: str, source: Row, prefix: Row) -> Row:
        """One measured run of a row; with ``whole_seconds``, the wall time on the whole of ``source``.

        A row that runs on a prefix runs on a few documents too: a straight line through both walls gives that of
        the whole. So what such a pipeline spends on starting up is charged once, as it is to dataprep.
        """
        result = self._once(row, tokenizer, source, prefix)
        whole = result["wall_seconds"]
        if row in ("plain", "datatrove") and result["status"] == "ok":
            start = self._once(row, tokenizer, source, prefix["start"])
            if start["status"] != "ok":
                return start
            result["start_run"] = start
            more = result["text_bytes"] - start["text_bytes"]
            slope = (whole - start["wall_seconds"]) / more if more > 0 else 0.0
            slope = slope if slope > 0 else whole / result["text_bytes"]
            whole += slope * (source["text_bytes"] - result["text_bytes"])
        if result["status"] == "ok":
            result["whole_seconds"] = whole
            result["mb_per_second"] = source["text_bytes"] / 1e6 / whole
            tokens = result["tokens"] * source["text_bytes"] / result["text_bytes"]
            result["tokens_per_second"] = tokens / whole
        return result

    def _once(self, row: str, tokenizer: str, source: Row, prefix: Row) -> Row:
        """One process with a fresh output folder. ``status`` is ok, 'not installed: X' or 'failed: ...'."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        print(f"  {Path(source['path']).name} {Path(tokenizer).name} {row} ...", file=sys.stderr, flush=True)
        kind, _, variant = row.partition(" ")
        read = source if kind in ("dataprep", "engine") else prefix
        if kind == "dataprep":
            result = measure(self._dataprep_command(tokenizer, read), self.scratch)
        else:
            result = measure(self._child_command(kind, variant, tokenizer, read, prefix), self.scratch)
        result.update(status="ok", text_bytes=read["text_bytes"])
        stdout = result.pop("stdout")
        try:
            _finish(result, kind, self.output, stdout)
        except (OSError, KeyError, ValueError, IndexError, struct.error) as error:
            result["status"] = f"failed: {error!r}"
        if result["status"] == "ok":
            del result["stderr"]
        shutil.rmtree(self.output, ignore_errors=True)
        return result

    def _dataprep_command(self, tokenizer: str, read: Row) -> list[str]:
        place = Path(tokenizer)
        eod = f"tokenizer.eod={json.dumps(eod_text(place / 'tokenizer.json' if place.is_dir() else place))}"
        settings = [part for value in ["policy.bos=never", eod, *self.args.set] for part in ("--set", value)]
        return [
            *shlex.split(self.args.command), "run", read["path"], "--tokenizer", tokenizer,
            "--output", str(self.output), "--workers", str(self.args.workers), *settings,
        ]  # fmt: skip

    def _child_command(self, kind: str, variant: str, tokenizer: str, read: Row, prefix: Row) -> list[str]:
        folder = Path(tokenizer) if Path(tokenizer).is_dir() else Path(tokenizer).parent
        file = Path(tokenizer) if Path(tokenizer).is_file() else folder / "tokenizer.json"
        spec = {
            "kind": kind, "variant": variant, "workers": self.args.workers, "input": read["path"],
            "inputs": prefix.get("folder"), "prefix_documents": prefix["documents"], "tokenizer": tokenizer,
            "tokenizer_file": str(file), "eod": eod_text(file), "output": str(self.output),
            "logs": str(self.scratch / "logs"),
        }  # fmt: skip
        shutil.rmtree(self.scratch / "logs", ignore_errors=True)
        python = self.args.datatrove_python if kind == "datatrove" else sys.executable
        return [python, __file__, "--child", json.dumps(spec)]

    def prefix(self, source: Path, size: int) -> Row:
        """The first documents of ``source``, at least one per worker: in one file, and dealt out to one per worker."""
        folder = self.scratch / f"prefix-{size}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = self.scratch / f"prefix-{size}.jsonl"
        files = [(folder / f"{number:05}.jsonl").open("wb") for number in range(self.args.workers)]
        with source.open("rb") as lines, path.open("wb") as out:
            number = 0
            for line in lines:
                if out.tell() >= size and number >= len(files):
                    break
                if line.strip():
                    out.write(line)
                    files[number % len(files)].write(line)
                    number += 1
        for file in files:
            file.close()
        return {**describe(path), "folder": str(folder)}


def _finish(result: Row, kind: str, output: Path, stdout: list[str]) -> None:
    """Add what the run produced to ``result``, or why there is nothing."""
    if result["exit_code"] == MISSING_EXIT and kind != "dataprep":
        result["status"] = f"not installed: {stdout[-1]}"
    elif result["exit_code"]:
        reason = next((line for line in reversed(result["stderr"]) if line.strip()), "no message")
        result["status"] = f"failed: exit code {result['exit_code']}: {reason.strip()}"
    elif kind == "dataprep":
        result.update(read_counts([Path(stdout[-1].strip() + ".idx")]))
    elif kind == "engine":
        result.update(json.loads(stdout[-1]))
    else:
        result.update(json.loads(stdout[-1]), **read_counts(sorted(output.glob("*.idx"))))


def read_counts(indexes: list[Path]) -> Row:
    """Tokens (from the size of the .bin) and documents of indexed datasets."""
    tokens = documents = 0
    for path in indexes:
        with path.open("rb") as file:
            _, code, sequences = struct.unpack("<QBQ", file.read(26)[9:])
        tokens += path.with_suffix(".bin").stat().st_size // ITEM_BYTES[code]
        documents += sequences
    return {"tokens": tokens, "documents": documents}


def eod_text(tokenizer_file: Path) -> str:
    """The end-of-document token as text: what tokenizer_config.json says, else the first usual one in the file."""
    try:
        eos = json.loads((tokenizer_file.parent / "tokenizer_config.json").read_text("utf-8"))["eos_token"]
        return eos if isinstance(eos, str) else eos["content"]
    except (OSError, KeyError, TypeError):
        added = [token["content"] for token in json.loads(tokenizer_file.read_text("utf-8"))["added_tokens"]]
        usual = ("<|endoftext|>", "<|end_of_text|>", "</s>")
        return next((name for name in usual if name in added), added[0] if added else usual[0])


# -- sessions


def compare(bench: Bench, source: Row, prefix: Row) -> list[Row]:
    """The main table: every wanted row, ``--repeats`` times, alternating and every other time in reverse."""
    wanted = [row for row in ROWS if row.split()[0] in bench.args.only]
    results = []
    for name, path in bench.args.tokenizers:
        runs: dict[str, list[Row]] = {row: [] for row in wanted}
        for repeat in range(bench.args.repeats):
            for row in wanted if repeat % 2 == 0 else reversed(wanted):
                runs[row].append(bench.run(row, path, source, prefix))
        results += summarise(name, runs)
    return results


def summarise(name: str, runs: dict[str, list[Row]]) -> list[Row]:
    """Medians of every row of one tokenizer, and ratios to the better engine variant and to ``plain``."""
    rows = []
    engine = best_engine(runs)
    keys = (
        "mb_per_second", "tokens_per_second", "wall_seconds", "whole_seconds", "cpu_seconds", "peak_bytes",
        "peak_anonymous_bytes",
    )  # fmt: skip
    for label, results in runs.items():
        bad = [result["status"] for result in results if result["status"] != "ok"]
        row: Row = {"tokenizer": name, "row": label, "status": bad[0] if bad else "ok", "engine_alone": label == engine}
        if not bad:
            row |= {key: median(result[key] for result in results) for key in keys}
            row |= {key: results[0].get(key) for key in ("tokens", "documents", "text_bytes", "prefix_tokens")}
            for other, key in ((engine, "ratio_engine"), ("plain", "ratio_plain")):
                row[key] = pairwise(results, runs.get(other or "", []))
        row["runs"] = results
        rows.append(row)
    return rows


def best_engine(runs: dict[str, list[Row]]) -> str | None:
    """The engine variant with the higher median throughput: this is 'engine alone'."""
    speeds = {
        row: median(result["mb_per_second"] for result in results)
        for row, results in runs.items()
        if row.startswith("engine") and results and all(result["status"] == "ok" for result in results)
    }
    return max(speeds, key=lambda row: speeds[row]) if speeds else None


def pairwise(mine: list[Row], others: list[Row]) -> float | None:
    """The median over repeats of my MB/s over the other's in the same repeat."""
    pairs = zip(mine, others, strict=False)
    ratios = [one["mb_per_second"] / two["mb_per_second"] for one, two in pairs if two["status"] == "ok"]
    return median(ratios) if ratios else None


def check_work(rows: list[Row], prefix: Row, label_input: str) -> list[Row]:
    """Compare every row's tokens with the engine's plus one EOD per document."""
    checks = []
    by_name = {(row["tokenizer"], row["row"]): row for row in rows if row["status"] == "ok"}
    for (tokenizer, label), row in by_name.items():
        parallel = by_name.get((tokenizer, "engine parallel"))
        if label == "engine parallel" or not parallel:
            continue
        if label == "engine threads":
            expected = parallel["tokens"]
        elif label == "dataprep":
            expected = parallel["tokens"] + parallel["documents"]
        else:
            expected = parallel["prefix_tokens"] + prefix["documents"]
        found = sorted({run["tokens"] for run in row["runs"]})
        check: Row = {"tokenizer": tokenizer, "row": label, "input": label_input, "tokens": found}
        checks.append({**check, "expected_tokens": expected, "equal": found == [expected]})
    return checks


def small(bench: Bench, source: Path) -> list[Row]:
    """Cold starts on the first 1 MB."""
    read = bench.prefix(source, 1_000_000)
    rows = []
    for name, path in bench.args.tokenizers:
        runs = [bench.run("dataprep", path, read, read) for _ in range(max(3, bench.args.repeats))]
        bad = [run["status"] for run in runs if run["status"] != "ok"]
        walls = sorted(run["wall_seconds"] for run in runs)
        row = {"tokenizer": name, "status": bad[0] if bad else "ok", "wall_seconds": median(walls), "runs": runs}
        rows.append({**row, "fastest_seconds": walls[0], "slowest_seconds": walls[-1]})
    return rows


def memory_curve(bench: Bench, source: Path) -> list[Row]:
    """Run dataprep and the engine on growing inputs, once per size."""
    rows = []
    for size in bench.args.memory_curve:
        read = grow(source, int(size * 1e9), bench.scratch / "curve.jsonl")
        prefix = {"documents": 0, "folder": None}
        for name, path in bench.args.tokenizers:
            runs = {label: [bench.run(label, path, read, prefix)] for label in ROWS[:3]}
            summary = {row["row"]: row for row in summarise(name, runs)}
            rows.append({"gigabytes": size, "input": read, **summary["dataprep"], "engine_alone": best_engine(runs)})
            rows[-1]["checks"] = check_work(list(summary.values()), prefix, f"{size:g} GB")
        os.unlink(read["path"])
    return rows


# -- what is printed


def table(header: list[str], lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    out = []
    for line in [header, ["-" * width for width in widths], *lines]:
        padded = [cell.ljust(width) for cell, width in zip(line[:2], widths, strict=False)]
        padded += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        out.append("  ".join(padded).rstrip())
    return "\n".join(out)


def number(value: float | None, scale: float = 1.0, digits: int = 2) -> str:
    return "-" if value is None else f"{value / scale:,.{digits}f}"


def labelled(label: str, row: Row) -> str:
    return label if row["status"] == "ok" else f"{label}: {row['status'][:70]}"


def cells(row: Row) -> list[str]:
    """The figures of one row, or dashes."""
    if row["status"] != "ok":
        return ["-"] * 7
    return [
        number(row["mb_per_second"]), number(row["tokens_per_second"], 1e6), number(row["wall_seconds"]),
        number(row["cpu_seconds"]), number(row["peak_bytes"], 1e6, 0), number(row["ratio_engine"], digits=3),
        number(row["ratio_plain"]),
    ]  # fmt: skip


def report(document: Row) -> str:
    """The whole session as text."""
    source, prefix, options = document["input"], document["prefix"], document["options"]
    parts = [
        f"dataprep throughput, {document['date']}, {document['machine']['cpus']} CPUs, {options['workers']} workers, "
        f"{options['repeats']} repeats, medians",
        f"input: {source['text_bytes'] / 1e6:,.1f} MB of text in {source['documents']:,} documents; {said(source)}",
    ]
    if document["rows"]:
        header = ["tokenizer", "row", "MB/s", "M tokens/s", "wall s", "CPU s", "peak MB", "/ engine", "/ plain"]
        names = [labelled(row["row"] + (" *" if row["engine_alone"] else ""), row) for row in document["rows"]]
        lines = [[row["tokenizer"], name, *cells(row)] for row, name in zip(document["rows"], names, strict=True)]
        parts += [
            table(header, lines),
            "* engine alone: the better variant. Encode time and CPU only, text in memory, caches cold; the other rows "
            "are whole processes from a cold start.\n"
            f"plain and datatrove ran on the first {prefix['text_bytes'] / 1e6:,.1f} MB of text "
            f"({prefix['documents']:,} documents), and wall, CPU and peak are those of that run;\n"
            f"their MB/s is for the whole input, by a straight line through that run and one on "
            f"{prefix['start']['documents']} documents, so that start-up is charged once. Compare MB/s, not wall.\n"
            "CPU: user + system with all descendants. peak: sampled sum of resident memory over the process tree "
            "(shared and file pages included). Ratios: MB/s within one repeat.",
        ]
    if document["checks"]:
        parts.append("\n".join(check_line(check) for check in document["checks"]))
    if document["small"]:
        header = ["tokenizer", "row", "wall s", "fastest", "slowest"]
        lines = [
            [
                row["tokenizer"], labelled("dataprep", row),
                *[number(row[key]) for key in ("wall_seconds", "fastest_seconds", "slowest_seconds")],
            ]
            for row in document["small"]
        ]  # fmt: skip
        parts += ["1 MB from a cold start", table(header, lines)]
    if document["memory_curve"]:
        header = ["tokenizer", "GB", "MB/s", "M tokens/s", "wall s", "CPU s", "peak MB", "/ engine", "anon MB"]
        header.append("repeated")
        lines = [
            [
                row["tokenizer"], labelled(f"{row['gigabytes']:g}", row), *cells(row)[:-1],
                number(row.get("peak_anonymous_bytes"), 1e6, 0), f"{row['input']['repeated']:.0%}",
            ]
            for row in document["memory_curve"]
        ]  # fmt: skip
        parts += [
            "Memory curve: dataprep on growing inputs, once per size (GB of JSONL)",
            table(header, lines),
            "engine: the better variant, one tokenizer kept, fed parts of about 500 MB each read before its clock "
            "starts. anon: without mapped files. repeated: share of text that repeats earlier documents.",
        ]
    return "\n\n".join(parts)


def check_line(check: Row) -> str:
    verdict = "same work" if check["equal"] else "UNEQUAL WORK"
    found = " / ".join(f"{tokens:,}" for tokens in check["tokens"])
    return (
        f"{verdict}: {check['tokenizer']}, {check['row']}, {check['input']}: {found} tokens, "
        f"expected {check['expected_tokens']:,}"
    )


def said(source: Row) -> str:
    if not source["repeated"]:
        return "no document repeated"
    return f"REPEATED: {source['repeated']:.1%} of this text repeats earlier documents"


def machine() -> Row:
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {"cpus": os.cpu_count(), "cpu": model, "platform": platform.platform(), "load": os.getloadavg()}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


# -- the command line


def _named(text: str) -> tuple[str, str]:
    name, _, path = text.rpartition("=")
    if not (Path(path).is_file() or Path(path, "tokenizer.json").is_file()):
        raise argparse.ArgumentTypeError(f"{path}: expected a tokenizer.json or a folder that holds one")
    return name or Path(path).name, str(Path(path).resolve())


def _size(text: str) -> int:
    return int(float(text))


def _sizes(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parse.add_argument("--input", type=Path, help="a .jsonl file with a text field")
    parse.add_argument("--make-corpus", type=_size, metavar="BYTES", help="build an input from text on this machine")
    parse.add_argument("--roots", type=Path, nargs="+", help="where to look for that text")
    parse.add_argument("--mix", type=Path, help="a .jsonl or .jsonl.zst whose documents are mixed in")
    parse.add_argument("--tokenizers", type=_named, nargs="+", metavar="NAME=PATH")
    parse.add_argument("--workers", type=int, default=2)
    parse.add_argument("--repeats", type=int, default=3)
    parse.add_argument("--only", nargs="*", choices=CHOICES, default=list(CHOICES), help="rows; none = no main table")
    parse.add_argument("--plain-bytes", type=_size, default=24_000_000, help="prefix for plain and datatrove")
    parse.add_argument("--small", action="store_true", help="also time a 1 MB input")
    parse.add_argument("--memory-curve", type=_sizes, default=[], metavar="GB,GB,...", help="also grow the input")
    parse.add_argument("--command", default=f"{shlex.quote(sys.executable)} -m dataprep", help="how to start dataprep")
    parse.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to dataprep")
    parse.add_argument("--datatrove-python", default=sys.executable, help="an interpreter that has datatrove")
    parse.add_argument("--scratch", type=Path, help="kept; default: a temporary folder, removed at the end")
    parse.add_argument("--json", type=Path, metavar="OUT", help="write everything here as JSON")
    parse.add_argument("--child", help=argparse.SUPPRESS)
    return parse


def make_input(args: argparse.Namespace, scratch: Path) -> Row:
    """The input and its description: the file given, or one of the size asked for."""
    if not args.make_corpus:
        if not args.input:
            raise SystemExit("give --input FILE.jsonl or --make-corpus BYTES")
        return describe(args.input.resolve())
    unique = args.input or scratch / "unique.jsonl"
    if not args.input:
        collect(args.roots or default_roots(), args.mix, args.make_corpus, unique)
    return grow(unique, args.make_corpus, scratch / f"corpus-{args.make_corpus}.jsonl")


def session(args: argparse.Namespace, scratch: Path) -> int:
    """Run what was asked for. Returns 1 where a row failed or did unequal work."""
    adopt_orphans()
    source = make_input(args, scratch)
    bench = Bench(args, scratch)
    prefix = bench.prefix(Path(source["path"]), args.plain_bytes)
    prefix["start"] = bench.prefix(Path(source["path"]), 1)
    document: Row = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "machine": machine(),
        "versions": versions(), "input": source, "prefix": prefix,
        "options": {key: value for key, value in vars(args).items() if key != "child"},
    }  # fmt: skip
    document["rows"] = compare(bench, source, prefix) if args.only else []
    document["checks"] = check_work(document["rows"], prefix, "main table")
    document["small"] = small(bench, Path(source["path"])) if args.small else []
    document["memory_curve"] = memory_curve(bench, Path(source["path"])) if args.memory_curve else []
    document["checks"] += [check for row in document["memory_curve"] for check in row.pop("checks")]
    if args.json:
        args.json.write_text(json.dumps(document, indent=1, sort_keys=True, default=str) + "\n")
    print(report(document))
    results = [*document["rows"], *document["small"], *document["memory_curve"]]
    failed = any(row["status"].startswith("failed") for row in results)
    return int(failed or not all(check["equal"] for check in document["checks"]))


def main() -> int:
    parse = parser()
    args = parse.parse_args()
    if args.child:
        return run_child(args.child)
    sample = Path(__file__).parents[2] / "tokenizers" / "sample"
    needed = args.only or args.small or args.memory_curve
    if needed and not args.tokenizers and not (sample / "tokenizer.json").is_file():
        parse.error("give --tokenizers NAME=PATH")
    args.tokenizers = args.tokenizers or [("sample", str(sample))]
    if args.scratch:
        args.scratch.mkdir(parents=True, exist_ok=True)
        return session(args, args.scratch.resolve())
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
        return session(args, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
