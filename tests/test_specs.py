"""`dataprep.specs`: what a YAML or a setting may say, and what the digest covers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SpecError
from dataprep.specs import (
    NAMESPACES,
    Corpus,
    FilesSource,
    ReaderSpec,
    Recipe,
    Runtime,
    SourceFile,
    TokenizerIdentity,
    TokenizerSpec,
    TokenPolicy,
    cluster_settings,
    find_cluster,
    load_yaml,
    parse_settings,
)

FILE = SourceFile(
    name="a/b.jsonl", path="/x/a/b.jsonl", num_bytes=123, mtime_ns=456, format="jsonl", compression="zstd"
)
TOKENIZER = TokenizerIdentity(
    name="gpt2",
    type="HuggingFaceTokenizer",
    path="/x/gpt2",
    files={"tokenizer.json": "ab" * 32},
    vocab_size=50257,
    bos_id=None,
    bos_text=None,
    eod_id=50256,
    eod_text="<|endoftext|>",
    adds_bos=False,
)
RECIPE = Recipe(corpus="c", reader=ReaderSpec(), files=(FILE,), tokenizer=TOKENIZER, policy=TokenPolicy())

DIGEST = "18ce68d7ed03c0ddfcabcc73eac0230b03a7516c6f57d0e931a9065570b262e4"
"""Changes when, and only when, every dataset that was ever published has to be made again."""


def _changed(model, **values):
    """The model with a field changed, validated."""
    return type(model).from_json({**model.to_json(), **values}, "test")


def test_digest_of_a_fixed_recipe_is_this_literal():
    assert RECIPE.digest == DIGEST


def test_digest_survives_json():
    """Workers read the recipe from recipe.json."""
    again = Recipe.from_json(json.loads(json.dumps(RECIPE.to_json())), "recipe.json")
    assert again == RECIPE
    assert again.digest == DIGEST


def test_digest_does_not_depend_on_where_things_lie_or_what_the_tokenizer_is_called():
    file = _changed(FILE, path="/elsewhere/b.jsonl", mtime_ns=1, url="hf://datasets/o/n@1/a/b.jsonl")
    tokenizer = _changed(TOKENIZER, path="/elsewhere", merges="/m", name="another", origin="hf://o/n@1")
    changed = _changed(RECIPE, files=[file.to_json()], tokenizer=tokenizer.to_json(), origin="hf://o/n@1", license="x")
    assert changed.digest == DIGEST


OTHER_POLICY = {"bos": "never", "eod": "none", "special_text": "reject", "empty": "keep", "dtype": "int32"}
OTHER_READER = {"format": "text", "text": "content", "separator": "\n\n", "max_document_bytes": 1000, "group_rows": 2}
OTHER_FILE = {"name": "a/c.jsonl", "num_bytes": 124, "checksum": "xxh3_128:00", "format": "text", "compression": "gzip"}
OTHER_TOKENIZER = {
    "type": "GPT2BPETokenizer",
    "files": {"tokenizer.json": "cd" * 32},
    "vocab_size": 50258,
    "bos_id": 1,
    "bos_text": "<s>",
    "eod_id": 50255,
    "eod_text": "</s>",
    "adds_bos": True,
}
OTHER_RECIPE = {"corpus": "d", "limit": 10, "output": {"max_prefix_bytes": 1000}}


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        *[("policy", field, value) for field, value in OTHER_POLICY.items()],
        *[("reader", field, value) for field, value in OTHER_READER.items()],
        *[("tokenizer", field, value) for field, value in OTHER_TOKENIZER.items()],
    ],
)
def test_digest_changes_with_every_field_of_policy_reader_and_tokenizer(part, field, value):
    changed = _changed(getattr(RECIPE, part), **{field: value})
    assert changed != getattr(RECIPE, part)
    assert RECIPE.model_copy(update={part: changed}).digest != DIGEST


@pytest.mark.parametrize(("field", "value"), OTHER_FILE.items())
def test_digest_changes_with_what_a_file_is(field, value):
    assert RECIPE.model_copy(update={"files": (_changed(FILE, **{field: value}),)}).digest != DIGEST


@pytest.mark.parametrize(("field", "value"), OTHER_RECIPE.items())
def test_digest_changes_with_corpus_limit_and_output(field, value):
    assert _changed(RECIPE, **{field: value}).digest != DIGEST


def test_a_recipe_of_before_there_were_outputs_has_the_digest_it_had():
    value = {key: value for key, value in RECIPE.to_json().items() if key != "output"}
    assert Recipe.from_json(value, "recipe.json").digest == DIGEST
    assert _changed(RECIPE, output={"max_prefix_bytes": "1KB"}).digest == (
        _changed(RECIPE, output={"max_prefix_bytes": 1000}).digest
    )


def test_digest_changes_with_number_and_order_of_files():
    other = _changed(FILE, name="z")
    digests = {
        RECIPE.model_copy(update={"files": files}).digest for files in ((), (FILE,), (FILE, other), (other, FILE))
    }
    assert len(digests) == 4


def test_no_field_is_forgotten_by_the_tests_above():
    """A new field needs a decision: does it enter the digest?"""
    assert set(TokenPolicy.model_fields) == set(OTHER_POLICY)
    assert set(ReaderSpec.model_fields) == set(OTHER_READER)
    assert set(SourceFile.model_fields) == {*OTHER_FILE, "path", "url", "mtime_ns", "stated"}
    assert set(TokenizerIdentity.model_fields) == {*OTHER_TOKENIZER, "path", "merges", "origin", "name", "adds_eod"}
    assert set(Recipe.model_fields) == {*OTHER_RECIPE, "origin", "license", "reader", "files", "tokenizer", "policy"}


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        RECIPE.corpus = "d"


CORPUS = "name: c\nsource: {kind: files, paths: [a.jsonl]}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("license: no", "license: expected text, found False; quote it in YAML"),
        ("license: on", "license: expected text, found True; quote it in YAML"),
        ("license: 2024_10", "license: expected text, found 202410; quote it in YAML"),
        ("license: 1.10", "license: expected text, found 1.1; quote it in YAML"),
        ("license: 2024-10-01", "Object of type date is not JSON serializable; quote dates and revisions in YAML"),
        (
            "license: 2024-10-01 10:00:00",
            "Object of type datetime is not JSON serializable; quote dates and revisions in YAML",
        ),
        ("license: 12:30:45", "license: expected text, found 45045; quote it in YAML"),
        ("license: 0o17", None),
        ("license: ~", "license: expected text, found None; quote it in YAML"),
        ("license: [mit]", "license: expected text, found ['mit']; quote it in YAML"),
        ("license: !!binary aGk=", "not JSON serializable"),
        ("reader: {max_document_bytes: yes}", "reader.max_document_bytes"),
        ("reader: {max_document_bytes: -1}", "reader.max_document_bytes: "),
        ("reader: {max_document_bytes: 2GiB}", "reader.max_document_bytes: "),
        ("reader: {max_document_bytes: lots}", "reader.max_document_bytes: "),
        (
            "reader: {format: csv}",
            "reader.format: Input should be 'auto', 'jsonl', 'parquet', 'arrow' or 'text', found 'csv'",
        ),
        ("reader: {separator: ''}", "reader.separator: "),
        ("reader: {txt: a}", "reader.txt: unknown key; known here: format, text, separator, max_document_bytes"),
        ("source: {kind: files, paths: []}", "source.paths: "),
        ("source: {kind: files, paths: a.jsonl}", "source.paths: "),
        ("source: {kind: files, paths: [a], globs: []}", "source.globs: unknown key; known here: kind, paths, exclude"),
        ("source: {kind: ftp, paths: [a]}", "source.kind: "),
        ("raeder: {}", "raeder: unknown key; known here: name, aliases, description, license, size, source, reader"),
        ("name: a/b", "name: "),
        ("name: ''", "name: "),
        ("name: .hidden", "name: "),
    ],
)
def test_yaml_traps_are_refused_and_the_message_names_key_and_value(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    key = text.partition(":")[0]
    path.write_text(
        "".join(line + "\n" for line in CORPUS.splitlines() if not line.startswith(f"{key}:")) + text + "\n"
    )
    if message is None:
        assert Corpus.from_json(load_yaml(path), str(path)).license == "0o17"  # text to YAML 1.1
        return
    with pytest.raises(SpecError) as caught:
        Corpus.from_json(load_yaml(path), str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_quoted_values_are_believed(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CORPUS + "license: 'no'\ndescription: '2024-10-01'\n")
    corpus = Corpus.from_json(load_yaml(path), "c")
    assert (corpus.license, corpus.description) == ("no", "2024-10-01")


def test_every_problem_of_a_yaml_is_named_at_once():
    with pytest.raises(SpecError) as caught:
        Corpus.from_json({"name": 3, "source": {"kind": "files", "paths": ["a"], "x": 1}, "y": 2}, "c.yaml")
    for part in ("name: expected text, found 3", "source.x: unknown key", "y: unknown key; known here: name,"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not YAML"),
        (b"a: [", "is not YAML"),
        (b"a: b: c", "is not YAML"),
        (b"text", "found str"),
        (b"", "found NoneType"),
    ],
)
def test_what_is_no_yaml_mapping_is_a_spec_error(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_yaml(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_builds_no_python_objects(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CORPUS + "license: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(SpecError, match="is not YAML"):
        load_yaml(path)


def test_a_path_that_is_a_folder_is_a_spec_error(tmp_path):
    with pytest.raises(SpecError, match="cannot read"):
        load_yaml(tmp_path)


def test_settings_are_parsed_as_yaml_by_namespace():
    found = parse_settings(
        [
            "reader.text=content",
            "reader.separator='\\n'",
            "policy.bos=never",
            "runtime.audit_rate=0",
            "runtime.max_rejects=0.5",
            "source.exclude=[a, b]",
        ]
    )
    assert found == {
        "reader": {"text": "content", "separator": "\\n"},
        "policy": {"bos": "never"},
        "runtime": {"audit_rate": 0, "max_rejects": 0.5},
        "source": {"exclude": ["a", "b"]},
    }
    assert parse_settings([]) == {}


def test_a_setting_may_hold_an_equals_sign_and_the_last_one_wins():
    assert parse_settings(["cluster.time=12:00:00"]) == {"cluster": {"time": "12:00:00"}}, "not YAML's 43200"
    assert parse_settings(["tokenizer.eod=<a=b>", "reader.text=a", "reader.text=b"]) == {
        "tokenizer": {"eod": "<a=b>"},
        "reader": {"text": "b"},
    }


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("cluster.account=12", "found 12; quote it in YAML: --set 'cluster.account=\"...\"' in a shell"),
        ("cluster.directives=--x", "cluster.directives: expected a list, found '--x'; write [...]"),
    ],
)
def test_settings_that_a_shell_unquotes(setting, told):
    with pytest.raises(SpecError) as found:
        find_cluster(parse_settings(["cluster.kind=slurm", setting])["cluster"])
    assert told in str(found.value)


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "reader",
        "reader.text",
        "reader=text",
        "text=content",
        ".text=a",
        "reader.=a",
        "nope.text=a",
        "=",
        "Reader.text=a",
    ],
)
def test_a_setting_without_namespace_key_or_value_names_the_namespaces(setting):
    with pytest.raises(SpecError) as caught:
        parse_settings([setting])
    assert str(caught.value).startswith(f"--set {setting}: expected NAMESPACE.KEY=VALUE")
    for namespace in NAMESPACES:
        assert namespace in str(caught.value)


@pytest.mark.parametrize("setting", ["reader.text=[", "reader.text={a", "policy.bos='", "reader.text=@x"])
def test_a_setting_whose_value_is_no_yaml_says_to_quote_it(setting):
    with pytest.raises(SpecError, match="the value is not YAML; put it in quotes"):
        parse_settings([setting])


@given(st.text(max_size=30))
def test_any_setting_is_parsed_or_a_spec_error(text):
    for setting in (text, f"reader.text={text}"):
        try:
            found = parse_settings([setting])
        except SpecError:
            continue
        assert set(found) <= set(NAMESPACES)


@pytest.mark.parametrize(
    ("model", "value", "message"),
    [
        (
            TokenPolicy,
            {"bos": "sometimes"},
            "policy: bos: Input should be 'auto', 'always' or 'never', found 'sometimes'",
        ),
        (TokenPolicy, {"bos": False}, "bos: "),
        (TokenPolicy, {"eos": "append"}, "eos: unknown key; known here: bos, eod, special_text, empty, dtype"),
        (Runtime, {"workers": 0}, "workers: "),
        (Runtime, {"workers": "2"}, "workers: "),
        (Runtime, {"workers": 1.0}, "workers: "),
        (Runtime, {"workers": True}, "workers: "),
        (Runtime, {"memory": "1MiB"}, "memory: "),
        (Runtime, {"max_rejects": 1.5}, "max_rejects: "),
        (Runtime, {"max_rejects": float("nan")}, "max_rejects: "),
        (Runtime, {"audit_rate": -1}, "audit_rate: "),
        (Runtime, {"threads": 2}, "threads: unknown key; known here: "),
        (TokenizerSpec, {"name": "t", "type": "Llama2Tokenizer"}, "give path: or repo:"),
        (FilesSource, {}, "paths: Field required"),
        (FilesSource, [], "(top level): "),
    ],
)
def test_values_are_validated_strictly(model, value, message):
    with pytest.raises(SpecError) as caught:
        model.from_json(value, "policy")
    assert message in str(caught.value)


def test_sizes_may_be_written_with_units():
    assert Runtime.from_json({"memory": "2GiB", "batch_bytes": "64KiB", "unit_bytes": 1}, "x").memory == 2 << 30
    assert ReaderSpec.from_json({"max_document_bytes": "1 MiB"}, "x").max_document_bytes == 1 << 20


def test_memory_grows_with_the_workers_unless_it_is_given():
    """A fixed default would starve many workers: batches would shrink and caches be emptied all the time."""
    mib = 1 << 20
    assert Runtime(workers=2).process_memory == 752 * mib
    assert Runtime(workers=64).process_memory == 11_664 * mib
    assert Runtime(workers=64, processes=True).process_memory == 576 * mib
    given = Runtime.from_json({"workers": 4, "memory": "1GiB"}, "x")
    assert given.process_memory == 1024 * mib
    assert given.model_copy(update={"processes": True}).process_memory == 256 * mib


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: slurm\n  nodez: 2", "cluster.nodez: unknown key"),
        ("kind: slurm\n  time: 2026-01-02", "quote dates"),
        ("kind: slum", "cluster.kind: expected one of local, existing, slurm"),
    ],
)
def test_a_mistake_in_a_clusters_yaml_names_the_file(tmp_path, text, told):
    path = tmp_path / "c.yaml"
    path.write_text(f"cluster:\n  {text}\n")
    with pytest.raises(SpecError) as found:
        cluster_settings(str(path))
    assert str(found.value).startswith(f"{path}: ")
    assert told in str(found.value)


def test_a_clusters_yaml_need_not_hold_all(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("cluster:\n  workers: 3\n")
    rest = ["cluster.kind=kubernetes", "cluster.image=x", "cluster.claim=y"]
    found = find_cluster(parse_settings([*cluster_settings(str(path)), *rest])["cluster"])
    assert (found.kind, found.num_workers) == ("kubernetes", 3)
