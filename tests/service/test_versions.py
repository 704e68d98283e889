"""Versions appear whole, once, and by whoever holds the claim; retention takes nothing that is in use or needed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dataprep import claims
from dataprep.claims import Claim
from dataprep.errors import DataprepError, FormatError, LostClaimError, OutputError, SpecError
from dataprep.manifest import PairFiles, Prefix
from dataprep.prefixes import find_prefix, find_prefixes
from dataprep.versions import (
    VersionManifest,
    VersionPart,
    Versions,
    hold_lease,
    leases_of,
    release_lease,
    retain,
    take_lease,
)
from dataprep.versions.leases import is_marked, mark_of

FILES = PairFiles(bin_bytes=4, bin_checksum="xxh3_128:0", idx_bytes=4, idx_checksum="xxh3_128:0")


def _part(versions: Versions, name: str, num_tokens: int = 2) -> VersionPart:
    """A part that is there."""
    (versions.parts / name).mkdir(parents=True, exist_ok=True)
    for end in ("bin", "idx"):
        (versions.parts / name / f"p_text_document.{end}").write_bytes(b"1234")
    prefix = Prefix(
        name="p_text_document", num_documents=1, num_sequences=1, num_tokens=num_tokens, dtype="uint16", files=FILES
    )
    return VersionPart(
        folder=f"../parts/{name}",
        recipe_digest=name * 8,
        manifest_checksum="",
        num_files=1,
        num_documents=1,
        num_sequences=1,
        num_tokens=num_tokens,
        num_text_bytes=3,
        prefixes=(prefix,),
    )


def _manifest(versions: Versions, number: int, *names: str, days: float = 0) -> VersionManifest:
    return VersionManifest(
        dataprep_version="0",
        dataset=versions.name,
        number=number,
        previous=number - 1 or None,
        run=1,
        corpus="c",
        tokenizer="t",
        parts=tuple(_part(versions, name, i + 1) for i, name in enumerate(names)),
        changed=(),
        vanished=(),
        created=(datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds"),
    )


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "data" / "news")


@pytest.fixture
def claim(versions: Versions) -> Iterator[Claim]:
    with Claim(versions.claim) as claim:
        yield claim


def _filled(versions: Versions, claim: Claim, count: int, days: float = 0) -> None:
    """Versions 1 to `count`; each has the part of its own number and that of the one before."""
    for number in range(1, count + 1):
        names = [f"p{n}" for n in (number - 1, number) if n]
        versions.publish(_manifest(versions, number, *names, days=days), claim)


def test_a_version_is_its_parts_by_relative_paths(versions, claim, monkeypatch):
    versions.publish(_manifest(versions, 1, "a"), claim)
    versions.publish(_manifest(versions, 2, "a", "b"), claim)
    assert versions.numbers() == [1, 2]
    assert os.readlink(versions.link) == "v000002"
    assert versions.newest() == versions.load(2)
    assert (versions.load(2).num_tokens, versions.load(2).num_files, versions.load(2).num_bytes) == (3, 2, 16)
    pairs = [versions.parts / name / "p_text_document" for name in ("a", "b")]
    lines = (versions.version(2) / "data_args.txt").read_text().split()
    assert lines == ["0.333333333", str(pairs[0]), "0.666666667", str(pairs[1])]
    for name in (versions.version(2), versions.link, versions.folder):
        assert find_prefixes(name) == pairs
    assert find_prefix(versions.version(1)) == pairs[0]
    moved = versions.folder.rename(versions.folder.with_name("elsewhere"))
    assert find_prefixes(moved / "current") == [moved / "parts" / name / "p_text_document" for name in ("a", "b")]
    monkeypatch.chdir(moved)
    assert find_prefixes("current") == [Path("parts", name, "p_text_document") for name in ("a", "b")]


def test_a_version_is_called_by_its_number_or_current(versions, claim):
    assert versions.find("current") == versions.find("1") == 0
    _filled(versions, claim, 3)
    words = ["current", "v000002", "v2", "2", "4", "v", "", "-1", "\u0662"]
    assert [versions.find(word) for word in words] == [3, 2, 2, 2, 0, 0, 0, 0, 0]


def test_a_folder_without_a_manifest_is_no_version(versions, claim):
    versions.publish(_manifest(versions, 1, "a"), claim)
    (versions.folder / "v000002").mkdir()
    (versions.folder / "v3").mkdir()
    assert versions.numbers() == [1]
    (versions.folder / "v000002" / "manifest.json").write_text("{}")
    with pytest.raises(FormatError, match="v000002"):
        versions.newest()


def _snapshot(folder: Path) -> dict[str, str]:
    """What everybody sees: names, links and contents; not what bears the number of an old claim."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(("claim", "staged-", "removing-", "gone.tmp-", "leases")) or name == "current-1":
            continue
        found[name] = os.readlink(path) if path.is_symlink() else path.read_text("latin-1") if path.is_file() else ""
    return found


@contextlib.contextmanager
def _overtaken(versions: Versions, claim: Claim, when: int, monkeypatch) -> Iterator[list[dict[str, str]]]:
    """Somebody takes the claim over right behind the `when`-th check that its holder passes; gives what they find."""
    real, calls, found = claim.check, [0], []

    def check() -> None:
        real()
        calls[0] += 1
        if calls[0] == when:
            with Claim(versions.claim, wait=True, ttl_seconds=0) as other:
                versions.take_over(other)
                found.append(_snapshot(versions.folder))

    monkeypatch.setattr(claim, "check", check)
    yield found


@pytest.mark.parametrize("when", [1, 2])
def test_who_was_overtaken_publishes_nothing(versions, monkeypatch, when):
    """Asleep between its last look and the rename: of the version, and of the link."""
    with Claim(versions.claim) as claim:
        versions.publish(_manifest(versions, 1, "a"), claim)
        with (
            _overtaken(versions, claim, when, monkeypatch) as found,
            pytest.raises((LostClaimError, OutputError)),
        ):
            versions.publish(_manifest(versions, 2, "a", "b"), claim)
        assert found == [_snapshot(versions.folder)]
        assert versions.numbers() == [1, 2][:when]  # the version was there before it was overtaken
        assert os.readlink(versions.link) == f"v00000{when}"
        with pytest.raises(LostClaimError):
            claim.check()


@pytest.mark.parametrize("when", [1, 2, 3, 4])
def test_who_was_overtaken_removes_nothing(versions, monkeypatch, when):
    """Asleep between its last look and a rename: of one version, of another, of a part; there is no fourth."""
    with Claim(versions.claim) as claim:
        _filled(versions, claim, 4)
        with (
            _overtaken(versions, claim, when, monkeypatch) as found,
            pytest.raises((LostClaimError, OutputError)) if when < 4 else contextlib.nullcontext(),
        ):
            retain(versions, claim, keep=2, days=None)
        assert found == ([_snapshot(versions.folder)] if when < 4 else [])
    with Claim(versions.claim) as claim:
        versions.take_over(claim)
        retain(versions, claim, keep=2, days=None)
    assert versions.numbers() == [3, 4]
    assert sorted(path.name for path in versions.parts.iterdir()) == ["p2", "p3", "p4"]
    assert not [path for path in versions.folder.iterdir() if "tmp-" in path.name or "removing" in path.name]


def test_two_that_publish_the_same_number(versions):
    """The claim is unlocked by hand, and both go on: the first one wins, and the other one knows."""
    with Claim(versions.claim) as one:
        manifest = _manifest(versions, 1, "a")
        with Claim(versions.claim, wait=True, ttl_seconds=0) as two:
            versions.publish(manifest.model_copy(update={"run": 2}), two)
            with pytest.raises(LostClaimError):
                versions.publish(manifest, one)
    assert versions.newest().run == 2


@pytest.mark.parametrize("step", ["mkdir", "open", "fsync", "rename", "replace", "symlink"])
def test_a_version_appears_whole_or_not_at_all(versions, step, monkeypatch):
    """Each call that changes the folder fails, for every one there is; the next run finishes what is left."""
    expected: set[frozenset[str]] = set()
    for number in range(1, 100):
        calls, real = [0], getattr(os, step)

        def fails(*args, calls=calls, number=number, real=real, **options):
            if threading.current_thread() is threading.main_thread() and (
                step != "open" or args[1] & (os.O_WRONLY | os.O_RDWR)
            ):
                calls[0] += 1
                if calls[0] == number:
                    raise OSError(errno.EIO, "fails on purpose")
            return real(*args, **options)

        here = Versions(versions.folder.parent / f"{step}-{number}")
        with Claim(here.claim) as claim:
            here.publish(_manifest(here, 1, "a"), claim)
            second = _manifest(here, 2, "a", "b")
            monkeypatch.setattr(os, step, fails)
            try:
                here.publish(second, claim)
                ended = True
            except DataprepError:
                ended = False
            monkeypatch.setattr(os, step, real)
        assert all(json.loads((here.version(each) / "manifest.json").read_text()) for each in here.numbers())
        assert find_prefixes(here.folder)
        with Claim(here.claim) as claim:
            here.take_over(claim)
            if here.numbers() == [1]:
                here.publish(second, claim)
        assert os.readlink(here.link) == "v000002"
        expected.add(frozenset(_snapshot(here.folder)))
        if ended and calls[0] < number:
            break
    assert number > 1
    assert len(expected) == 1


def test_a_file_system_without_links_has_no_current(versions, claim, monkeypatch):
    def refuses(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", refuses)
    versions.publish(_manifest(versions, 1, "a"), claim)
    assert not versions.link.is_symlink()
    assert versions.find("current") == 1


def test_retention_keeps_so_many_and_all_that_are_younger(versions, claim):
    assert retain(versions, claim, None, None).versions == ()
    for number, days in enumerate([40, 31, 29, 3, 2, 1], 1):
        versions.publish(_manifest(versions, number, f"p{number}", days=days), claim)
    (versions.parts / "half").mkdir()
    assert retain(versions, claim, None, None).parts == ("half",)
    for more in (6, 7, 8, 11, 12, 13):
        assert retain(versions, claim, more, None).versions == (), "as many as there are, and more"
    assert retain(versions, claim, 5, 30).versions == (1,)
    assert retain(versions, claim, 2, 30).versions == (2,)
    removed = retain(versions, claim, 2, None)
    assert (removed.versions, removed.parts, removed.num_bytes) == ((3, 4), ("p3", "p4"), 16)
    assert retain(versions, claim, None, 0.001).versions == (5,)
    assert versions.numbers() == [6]
    assert [path.name for path in versions.parts.iterdir()] == ["p6"]


def test_retention_needs_to_know_what_stays(versions, claim):
    _filled(versions, claim, 3)
    (versions.version(2) / "manifest.json").write_text("{")
    with pytest.raises(FormatError):
        retain(versions, claim, 2, None)
    assert len(list(versions.parts.iterdir())) == 3


def test_a_leased_version_stays_with_its_parts(versions, claim):
    _filled(versions, claim, 4)
    lease = take_lease(versions, "v1", "a training", timedelta(hours=1))
    removed = retain(versions, claim, 2, None)
    assert (removed.versions, removed.leased) == ((2,), (1,))
    assert find_prefixes(versions.version(1))
    later = datetime.now(UTC) + timedelta(hours=1, minutes=59)
    assert retain(versions, claim, 2, None, later).leased == (1,)
    assert [each.id for each in leases_of(versions)] == [lease.id]
    assert release_lease(versions, lease.id)
    assert not release_lease(versions, lease.id)
    assert not release_lease(versions, "../v000003/manifest")
    assert retain(versions, claim, 2, None).versions == (1,)
    assert sorted(path.name for path in versions.parts.iterdir()) == ["p2", "p3", "p4"]


def test_a_lease_ends_with_its_time_or_its_command(versions, claim):
    _filled(versions, claim, 1)
    take_lease(versions, "1", "for an hour", timedelta(hours=1))
    later = datetime.now(UTC) + timedelta(hours=2, seconds=1)
    assert leases_of(versions, later) == []
    with hold_lease(versions, "current", "a command") as lease:
        assert lease.version == 1
        assert {each.who for each in leases_of(versions)} == {"for an hour", "a command"}
    assert {each.who for each in leases_of(versions)} == {"for an hour"}


@pytest.mark.parametrize("word", ["2", "v7", "newest", ""])
def test_a_lease_of_no_version(versions, claim, word):
    _filled(versions, claim, 1)
    with pytest.raises(SpecError, match=r"has no version .*; the newest are: v000001"):
        take_lease(versions, word, "x")


@pytest.mark.parametrize("span", [timedelta(0), timedelta(days=-1), timedelta.max])
def test_a_lease_for_no_time(versions, claim, span):
    _filled(versions, claim, 1)
    with pytest.raises(SpecError):
        take_lease(versions, "1", "x", span)
    assert leases_of(versions) == []


def test_a_lease_that_cannot_be_read_holds_everything(versions, claim):
    _filled(versions, claim, 3)
    versions.leases.mkdir()
    (versions.leases / "x.json").write_text("{")
    with pytest.raises(OutputError, match="cannot read the lease"):
        retain(versions, claim, 1, None)
    assert versions.numbers() == [1, 2, 3]


def test_a_lease_of_a_version_that_is_being_removed(versions, claim):
    """Retention has marked it, and looks for leases next: one of the two sees the other."""
    _filled(versions, claim, 3)
    versions.leases.mkdir()
    mark_of(versions, 1, claim.epoch).touch()
    assert is_marked(versions, 1)
    assert not is_marked(versions, 2)
    with pytest.raises(SpecError, match="is being removed"):
        take_lease(versions, "1", "x")
    assert leases_of(versions) == []
    take_lease(versions, "2", "x")
    with Claim(versions.claim, wait=True, ttl_seconds=0) as other:  # whoever marked it has died
        versions.take_over(other)
    take_lease(versions, "1", "x")


def test_leases_and_retention_at_the_same_time(versions, claim, monkeypatch):
    """Between its mark and its look, and behind it, somebody asks for the version that goes: both never get it."""
    _filled(versions, claim, 4)
    real, got = claim.check, []

    def check() -> None:
        real()
        with contextlib.suppress(SpecError):
            got.append(take_lease(versions, "1", "late").version)

    monkeypatch.setattr(claim, "check", check)
    assert retain(versions, claim, 3, None).versions == (1,)
    assert got == []


def test_epochs_count_up(versions):
    for epoch in (1, 2, 3):
        with Claim(versions.claim) as claim:
            assert claim.epoch == epoch
    assert claims.look(versions.claim).is_free


def test_leases_that_are_over_go(versions, claim):
    """Of commands that were killed, and of times that are past; marks go with what they mark."""
    _filled(versions, claim, 3)
    over = take_lease(versions, "1", "over", timedelta(hours=1))
    held = take_lease(versions, "3", "held", timedelta(days=30))
    later = datetime.now(UTC) + timedelta(hours=3)
    assert retain(versions, claim, 2, None, later).versions == (1,)
    assert [path.name for path in versions.leases.iterdir()] == [f"{held.id}.json"]
    assert not release_lease(versions, over.id)


def test_a_version_that_cannot_be_opened_gets_no_lease(versions, claim, monkeypatch):
    _filled(versions, claim, 1)

    def refuses(*_: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(Path, "open", refuses)
    with pytest.raises(OutputError, match=r"manifest\.json"):
        take_lease(versions, "current", "x")


def test_retention_reads_no_more_versions_than_it_needs(versions, claim, monkeypatch):
    """All parts are in the newest one; what is in none is looked for in all."""
    _filled(versions, claim, 3)
    versions.publish(_manifest(versions, 4, "p1", "p2", "p3"), claim)
    read, load = [], Versions.load
    monkeypatch.setattr(Versions, "load", lambda self, number: read.append(number) or load(self, number))
    assert retain(versions, claim, None, None).parts == ()
    assert read == [4]
    (versions.parts / "half").mkdir()
    assert retain(versions, claim, None, None).parts == ("half",)
    assert read == [4, 4, 3, 2, 1]


@pytest.mark.parametrize("folder", ["../../../foreign", "/foreign", "../parts/../../../foreign", ""])
def test_a_manifest_that_names_folders_elsewhere_removes_nothing_there(versions, claim, folder, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "kept").touch()
    version = _manifest(versions, 1, "a")
    part = version.parts[0].model_copy(update={"folder": folder.replace("/foreign", str(foreign), folder[:1] == "/")})
    versions.publish(version.model_copy(update={"parts": (part,)}), claim)
    versions.publish(_manifest(versions, 2, "b"), claim)
    assert retain(versions, claim, 1, None).parts == ("a",)
    assert (foreign / "kept").exists()


def test_the_number_of_a_version_that_is_half_gone_is_not_used_again(versions, claim):
    _filled(versions, claim, 2)
    (versions.version(2) / "manifest.json").unlink()
    assert (versions.numbers(), versions.next_number()) == ([1], 3)


def test_a_path_with_spaces_is_warned_of(tmp_path, said):
    for name in ("has some", "none"):
        versions = Versions(tmp_path / name / "news")
        with Claim(versions.claim) as claim:
            versions.publish(_manifest(versions, 1, "a"), claim)
    assert said().count("Megatron splits --data-args-path at spaces") == 1
    assert f"of which {tmp_path}/has some/news has some" in said()


def test_what_somebody_keeps_beside_versions_stays(versions, claim):
    _filled(versions, claim, 1)
    mine = [versions.folder / name for name in ("v000001-1", "v000001-old", "notes", "staged", "current-x")]
    for path in mine:
        path.mkdir()
    with Claim(versions.claim, wait=True, ttl_seconds=0) as other:
        versions.take_over(other)
        retain(versions, other, 1, None)
    assert all(path.is_dir() for path in mine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "expected schema_version 1, found 2; update dataprep"),
        ({"kind": "dataset"}, "not a manifest of dataprep: .*kind"),
        ({"parts": [{"folder": 5}]}, "not a manifest of dataprep: .*folder"),
    ],
)
def test_a_manifest_that_is_none(versions, claim, change, message):
    _filled(versions, claim, 1)
    path = versions.version(1) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=message):
        versions.newest()
