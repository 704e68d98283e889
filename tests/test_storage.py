"""`dataprep.storage`: whole files or none, one holder, and copies that work where the kernel's do not."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import xxhash

from dataprep import storage
from dataprep.errors import Cancelled, OutputError
from dataprep.layout import Layout
from dataprep.remains import sweep
from dataprep.storage import (
    MARK,
    AtomicFile,
    append_line,
    checksum,
    copy_range,
    make_folder,
    output_error,
    read_whole,
    replace_link,
    write_all,
    write_json,
)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _fail(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    def call(*args: object, **kwargs: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, name, call)


# --- names


def test_layout_names_everything_below_the_output(tmp_path):
    layout = Layout.of(tmp_path, "fineweb", "gpt2", "0123456789abcdef" * 4)
    assert layout.work == tmp_path / "work" / "0123456789abcdef"
    assert layout.prefix == tmp_path / "fineweb-gpt2-01234567" / "fineweb_text_document"
    assert layout.manifest == tmp_path / "fineweb-gpt2-01234567" / "manifest.json"
    assert layout.link == tmp_path / "fineweb-gpt2"
    assert layout.growing(0) == layout.staged / layout.prefix.name
    assert layout.growing(1).name == layout.name(1) == "fineweb_00001_text_document"
    for path in (
        layout.merged,
        layout.staged,
        layout.receipts,
        layout.lengths,
        layout.all_rejects,
        layout.recipe,
        layout.plan,
        layout.claim,
        layout.events,
        layout.unit_manifest("u"),
        layout.unit_rejects("u"),
    ):
        assert layout.work in path.parents
        assert MARK not in str(path)


# --- atomic files


def test_a_file_has_its_name_only_when_it_is_whole(workspace):
    path = workspace / "file"
    with AtomicFile(path) as file:
        file.write(b"one")
        file.write(memoryview(b" two"))
        file.write(b"")
        assert not path.exists()
    assert path.read_bytes() == b"one two"
    assert (file.num_bytes, file.checksum) == (7, f"xxh3_128:{xxhash.xxh3_128_hexdigest(b'one two')}")
    assert _names(workspace) == ["file"]


def test_an_exception_leaves_nothing_and_keeps_what_was_there(workspace):
    path = workspace / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), AtomicFile(path) as file:  # noqa: PT012
        file.write(b"new")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert _names(workspace) == ["file"]


def test_two_writers_of_one_name_do_not_mix(workspace):
    """A unit may be done twice at once after its worker was lost."""
    path = workspace / "file"
    with AtomicFile(path) as first:
        first.write(b"a" * 1000)
        with AtomicFile(path) as second:
            second.write(b"a" * 1000)
        assert path.read_bytes() == b"a" * 1000
        first.write(b"b")
    assert path.read_bytes() == b"a" * 1000 + b"b"


def test_undo_goes_back_to_the_mark(workspace):
    path = workspace / "file"
    with AtomicFile(path) as file:
        file.write(b"kept")
        mark = file.mark()
        for text in (b"a much longer text that goes", b"x"):
            file.write(text)
            file.undo(mark)
        file.write(b"!")
    assert path.read_bytes() == b"kept!"
    assert file.checksum == checksum(path)
    assert file.num_bytes == 5


def test_the_kernel_may_take_a_part_of_a_write(workspace, monkeypatch):
    original = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: original(fd, bytes(data)[:7]))
    with AtomicFile(workspace / "file") as file:
        file.write(bytes(range(100)))
    assert (workspace / "file").read_bytes() == bytes(range(100))


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "close"])
def test_a_refusal_is_an_output_error_that_leaves_nothing(workspace, monkeypatch, name):
    path = workspace / "file"
    path.write_bytes(b"old")
    closed: list[int] = []
    original = os.close

    def write() -> None:
        with monkeypatch.context() as patch, AtomicFile(path) as file:
            closed.append(file.fd)
            if name == "write":
                _fail(patch, name, errno.EIO)
            file.write(b"new")
            _fail(patch, name, errno.EIO)

    with pytest.raises(OutputError, match=r"Input/output error.*what is finished is kept"):
        write()
    if name == "close":
        original(closed[0])
    assert path.read_bytes() == b"old"
    assert _names(workspace) == ["file"]


def test_durable_means_file_and_folder_are_synced(workspace, monkeypatch):
    synced = []
    original = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)), original(fd)))
    write_json(workspace / "a", {})
    assert synced == [False, True]
    write_json(workspace / "b", {}, durable=False)
    assert synced == [False, True]


@pytest.mark.parametrize(("error", "raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_folders_that_cannot_be_synced_are_left_alone(workspace, monkeypatch, error, raised):
    _fail(monkeypatch, "fsync", error)
    if raised:
        with pytest.raises(OSError, match="Input/output"):
            storage.sync_folder(workspace)
    else:
        storage.sync_folder(workspace)


def test_json_is_sorted_and_ends_with_a_newline(workspace):
    write_json(workspace / "a.json", {"b": [1], "a": "\u00e4"})
    assert (workspace / "a.json").read_text(encoding="utf-8") == '{\n  "a": "\u00e4",\n  "b": [\n    1\n  ]\n}\n'


def test_json_that_cannot_be_written_leaves_the_old(workspace):
    write_json(workspace / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(workspace / "a.json", {"a": object()})
    assert json.loads((workspace / "a.json").read_text()) == {"a": 1}
    assert _names(workspace) == ["a.json"]


def test_lines_are_appended_whole(workspace):
    path = workspace / "events.jsonl"
    append_line(path, {"b": 1, "a": "\n"})
    append_line(path, {"c": 2})
    assert path.read_text() == '{"a": "\\n", "b": 1}\n{"c": 2}\n'


# --- messages


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errno.ENOSPC,
            r"no space left \(\d+ MB free\); make room or choose another --output, then run the same command again",
        ),
        (errno.EDQUOT, r"quota exceeded \(\d+ MB free\); make room"),
        (errno.EROFS, "Read-only file system; choose a folder you can write to with --output"),
        (errno.EACCES, "Permission denied; choose a folder"),
        (errno.ENOTDIR, "is a file, not a folder"),
        (errno.EIO, "Input/output error; run the same command again once this is mended"),
    ],
)
def test_messages_say_what_where_and_what_next(workspace, error, said):
    path = workspace / "not" / "there"
    problem = output_error(path, "write", OSError(error, os.strerror(error)))
    assert isinstance(problem, OutputError)
    with pytest.raises(OutputError, match=said):
        raise problem
    assert str(problem).startswith(f"cannot write {path}: ")


def test_a_file_in_the_way_of_a_folder(workspace):
    (workspace / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="is a file, not a folder"):
        make_folder(workspace / "file" / "work" / "x")
    with pytest.raises(OutputError, match="File exists"):
        make_folder(workspace / "file")


# --- copies


METHODS = ["copy_file_range", "sendfile", "pread"]


@pytest.mark.parametrize("num_refused", [0, 1, 2])
@pytest.mark.parametrize("error", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM])
def test_copies_where_the_kernel_refuses(workspace, monkeypatch, num_refused, error):
    data = os.urandom(300_000)
    (workspace / "a").write_bytes(data)
    for name in METHODS[:num_refused]:
        _fail(monkeypatch, name, error)
    _copy(workspace, 5, 299_999)
    assert (workspace / "b").read_bytes() == b"before" + data[5:299_999]


@pytest.mark.parametrize("name", METHODS[:2])
def test_a_refusal_in_the_middle_of_a_copy(workspace, monkeypatch, name):
    data = os.urandom(300_000)
    (workspace / "a").write_bytes(data)
    if name == "sendfile":
        _fail(monkeypatch, "copy_file_range", errno.EXDEV)
    original = getattr(os, name)
    left = [3]

    def some(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EINVAL, "no more")
        return original(*_fewer(name, args), **kwargs)

    monkeypatch.setattr(os, name, some)
    _copy(workspace, 0, len(data))
    assert left[0] < 0
    assert (workspace / "b").read_bytes() == b"before" + data


def _fewer(name: str, args: tuple) -> tuple:
    position = 2 if name == "copy_file_range" else 3
    return (*args[:position], min(args[position], 1000), *args[position + 1 :])


def test_a_kernel_that_copies_nothing_is_not_believed(workspace, monkeypatch):
    """copy_file_range returned 0 for files of /proc and of some network mounts, without an error."""
    (workspace / "a").write_bytes(b"content")
    monkeypatch.setattr(os, "copy_file_range", lambda *args, **kwargs: 0)
    monkeypatch.setattr(os, "sendfile", lambda *args: 0)
    _copy(workspace, 0, 7)
    assert (workspace / "b").read_bytes() == b"beforecontent"


def test_a_source_that_ends_early_is_an_error(workspace):
    (workspace / "a").write_bytes(b"12345")
    with pytest.raises(OSError, match="ends at byte 5, expected 9"):
        _copy(workspace, 2, 9)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_errors_that_are_no_refusals_are_raised(workspace, monkeypatch, error):
    (workspace / "a").write_bytes(b"12345")
    _fail(monkeypatch, "copy_file_range", error)
    with pytest.raises(OSError, match=os.strerror(error)):
        _copy(workspace, 0, 5)


def _copy(folder: Path, start: int, stop: int) -> None:
    source = os.open(folder / "a", os.O_RDONLY)
    target = os.open(folder / "b", os.O_RDWR | os.O_CREAT)
    try:
        write_all(target, b"before")
        copy_range(source, target, start, stop)
    finally:
        os.close(source)
        os.close(target)


# --- checksums


def test_checksum_of_a_file(workspace, monkeypatch):
    monkeypatch.setattr(storage, "COPY_BYTES", 10)
    (workspace / "a").write_bytes(b"0123456789abc")
    assert checksum(workspace / "a") == f"xxh3_128:{xxhash.xxh3_128_hexdigest(b'0123456789abc')}"
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        checksum(workspace / "a", stop)


# --- leftovers and links


def test_sweep_removes_what_is_marked_and_nothing_else(workspace):
    (workspace / "kept").write_bytes(b"")
    (workspace / f"file{MARK}1-2").write_bytes(b"")
    (workspace / f"folder{MARK}merge" / "inside").mkdir(parents=True)
    (workspace / "folder" / f"deeper{MARK}1").mkdir(parents=True)
    outside = workspace / "target"
    (outside / "precious").mkdir(parents=True)
    (workspace / f"link{MARK}1").symlink_to(outside)
    assert sweep(workspace) == 3
    assert _names(workspace) == ["folder", "kept", "target"]
    assert (outside / "precious").is_dir()
    assert sweep(workspace / "missing") == 0


def test_a_link_changes_in_one_step(workspace):
    for name in ("old", "new"):
        (workspace / name).mkdir()
        replace_link(workspace / "link", name)
        assert os.readlink(workspace / "link") == name
    assert _names(workspace) == ["link", "new", "old"]


def test_a_link_replaces_a_dangling_one_but_no_real_folder(workspace):
    (workspace / "link").symlink_to("nowhere")
    replace_link(workspace / "link", "new")
    assert os.readlink(workspace / "link") == "new"
    (workspace / "folder").mkdir()
    replace_link(workspace / "folder", "new")
    assert not (workspace / "folder").is_symlink()


def test_a_link_that_fails_leaves_the_old_and_can_be_tried_again(workspace, monkeypatch):
    replace_link(workspace / "link", "old")
    with monkeypatch.context() as patch:
        _fail(patch, "replace", errno.EIO)
        with pytest.raises(OutputError, match="cannot link"):
            replace_link(workspace / "link", "new")
    assert os.readlink(workspace / "link") == "old"
    replace_link(workspace / "link", "new")
    assert os.readlink(workspace / "link") == "new"
    assert _names(workspace) == ["link"]


@pytest.mark.timeout(20)
def test_what_is_no_plain_file_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert [read_whole(path, most) for most in (3, 4)] == [b"abc", b"abc"]
    with pytest.raises(OSError, match="more than 2 bytes"):
        read_whole(path, 2)
    os.truncate(path, 10 << 30)
    with pytest.raises(OSError, match="more than 268,435,456 bytes"):
        read_whole(path)

    os.symlink("/dev/zero", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "link", tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"no plain file|Is a directory"):
            read_whole(other)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "none")
    grown = Path("/proc/self/maps")  # states 0 bytes, and has more
    assert read_whole(grown)
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_whole(grown, 10)
