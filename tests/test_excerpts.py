"""One document, one sample, decoded and led back to the source files."""

import json
import struct
from pathlib import Path

import pytest

import dataprep
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import IndexedDataset, bin_path, idx_path
from dataprep.inspection.excerpts import document, sample, where
from dataprep.samples import SampleOrder, Sampling

TINY = Sampling(4, split="1")


@pytest.fixture
def made(tmp_path, inline_cluster):
    """Two source files: of the first, every record became a document; of the second, some did not."""
    lines = ["", json.dumps({"text": "third"}), "not json", json.dumps({"text": ""}), json.dumps({"text": "fourth"})]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("first", "second")))
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    settings = ["runtime.max_rejects=0.5"]
    return dataprep.run([str(tmp_path / "*.jsonl")], "sample", tmp_path / "out", settings=settings).prefix


def merged(made, folder, provenance=True):
    """A pair of documents 2 and 3 of `made`, 0 of a pair without a manifest, and 0 and 1 of `made`."""
    value = json.loads((Path(made).parent / "manifest.json").read_text())
    parts = [
        {"prefix": made, "start": 2, "num_documents": 2, "recipe": 0, "provenance": value["provenance"]},
        {"prefix": "/foreign", "start": 5, "num_documents": 1},
        {"prefix": made, "start": 0, "num_documents": 2, "recipe": 0, "provenance": value["provenance"]},
    ]
    sizes = {"bin_bytes": (folder / "new.bin").stat().st_size, "idx_bytes": (folder / "new.idx").stat().st_size}
    entry = {**value["prefixes"][0], "name": "new", "num_documents": 5, "num_sequences": 5, "num_tokens": 5}
    entry["files"] = {**entry["files"], **sizes}
    shared = {key: value[key] for key in ("schema_version", "dataprep_version", "lengths", "verification", "created")}
    pair = {
        **shared,
        "kind": "pair",
        "command": "merge",
        "options": {},
        "recipes": [value["recipe"]],
        "parts": parts,
        "prefixes": [entry],
    }
    (folder / "new.manifest.json").write_text(json.dumps(pair))


# --- one document


def test_a_document_is_decoded_and_led_back_to_its_source(made, tmp_path):
    value = document(made, 3)

    assert value["text"] == "fourth<|endoftext|>"
    assert value["num_tokens"] == len(value["ids"])
    assert value["source"]["file"] == str(tmp_path / "b.jsonl")
    assert (value["source"]["first_row"], value["source"]["last_row"]) == (0, 3)
    assert dataprep.decode(made, 0) == "first<|endoftext|>"


@pytest.mark.parametrize("number", [-1, 4, 2**70])
def test_a_document_that_is_not_there_is_a_bad_request(made, number):
    for ask in (document, where):
        with pytest.raises(SpecError, match="documents 0 to 3"):
            ask(made, number)


def test_without_a_tokenizer_there_are_ids(make_pair):
    prefix = make_pair([[0, 1], [2, 3, 4, 5, 6]])

    for ask in (lambda **with_: document(prefix, 0, **with_), lambda **with_: sample(prefix, 0, TINY, **with_)):
        ids, decoded = ask(), ask(tokenizer="sample")
        ((id_part,), (part,)) = ((value.get("pieces") or [value])[:1] for value in (ids, decoded))
        assert (id_part["ids"], id_part["text"]) == (part["ids"], None)
        assert part["text"]
        assert decoded["notes"] == []
        assert ids["notes"] == [
            f"only ids are shown: {prefix} has no manifest that names its tokenizer; to decode them, give a tokenizer "
            "with --tokenizer"
        ]
    with pytest.raises(SpecError, match="--tokenizer"):
        dataprep.decode(prefix, 0)
    with pytest.raises(SpecError, match="unknown tokenizer"):
        document(prefix, 0, "nosuch")
    assert document(prefix, 0, "sample")["ids"] == [0, 1]
    assert "source" not in document(prefix, 0, "sample")


def test_a_manifest_that_cannot_be_read_is_no_obstacle_to_a_named_tokenizer(make_pair):
    prefix = make_pair([[0, 1]])
    (prefix.parent / "manifest.json").write_text("[]")

    assert document(prefix, 0, "sample")["ids"] == [0, 1]
    value = document(prefix, 0)
    assert (value["ids"], value["text"]) == ([0, 1], None)
    assert "manifest.json: expected schema_version 1, found 'list'" in value["notes"][0]


def test_ids_that_are_no_tokens_are_shown_and_counted(make_pair):
    prefix = make_pair([[-5, 0, 2**31 - 1, -5]], dtype="int32")
    value = document(prefix, 0, "sample")

    assert value["text"] == "<-5><|endoftext|><2147483647><-5>"
    assert value["notes"] == ["3 of 4 tokens are not in the tokenizer's vocabulary; is it another's?"]
    assert sample(prefix, 0, Sampling(2, split="1"), "sample")["notes"][0].startswith("2 of 3 tokens")


def _lengthened(prefix):
    """Megatron-DeepSpeed's EODs: in the .bin, not in the lengths."""
    with bin_path(prefix).open("ab") as file:
        file.write(b"\0\0")


def _shifted(prefix):
    """The pointer of sequence 1 is not where sequence 0 ends."""
    data = bytearray(idx_path(prefix).read_bytes())
    struct.pack_into("<q", data, 34 + 3 * 4 + 8, 4)
    idx_path(prefix).write_bytes(data)


@pytest.mark.parametrize("spoil", [_lengthened, _shifted])
def test_tokens_of_an_unsound_pair_come_with_a_warning(make_pair, spoil):
    prefix = make_pair([[1], [2], [3, 4]])
    assert document(prefix, 1, "sample")["sound"]
    spoil(prefix)

    value = document(prefix, 1, "sample")
    assert not value["sound"]
    assert len(value["ids"]) == 1
    (warning,) = value["notes"]
    assert warning.endswith(f"these may be tokens of other documents; run: dataprep verify {prefix}")
    with pytest.raises(FormatError, match="document 1: the index is broken"):
        dataprep.decode(prefix, 1, "sample")


@pytest.mark.parametrize("documents", [[[], [], []], [[], [1], []], [[1], [], [2]]])
def test_documents_without_tokens_are_sound(make_pair, documents):
    for prefix in (make_pair(documents), make_pair([[1, 2]], boundaries=[0, 0, 1, 1])):
        assert all(document(prefix, number, "sample")["sound"] for number in range(3))


def test_floats_lead_to_verify(make_pair):
    prefix = make_pair([[1.5, 2, 3, 4, 5, 6]], dtype="float32")

    for ask in (lambda: document(prefix, 0, "sample"), lambda: sample(prefix, 0, TINY, "sample")):
        with pytest.raises(FormatError, match="float32 is no token id; run: dataprep verify"):
            ask()


@pytest.mark.parametrize("bounds", [(-1, 2), (1, 3), (2, 1), (2**60, 2**60 + 1)])
def test_broken_boundaries_lead_to_verify(make_pair, bounds):
    prefix = make_pair([[1], [2]], boundaries=[0, *bounds, 2])

    with pytest.raises(FormatError, match="run: dataprep verify"):
        document(prefix, 1, "sample")


def test_what_is_too_long_for_a_person_is_not_decoded(make_pair):
    prefix = make_pair([[1], [2]])
    data = bytearray(idx_path(prefix).read_bytes())
    struct.pack_into("<i", data, 34, 2**31 - 1)
    idx_path(prefix).write_bytes(data)

    with pytest.raises(SpecError, match=r"document 0 .* more than 16777216 tokens.*run: dataprep verify"):
        document(prefix, 0, "sample")
    with pytest.raises(SpecError, match="--seq-length"):
        sample(prefix, 0, Sampling(2**25, split="1"), "sample")


# --- one sample


def test_a_sample_is_made_of_pieces_of_documents(make_pair):
    texts = [[number * 10 + place for place in range(2 + number)] for number in range(6)]
    prefix, sampling = make_pair(texts), Sampling(7, seed=3, split="1")
    pair = IndexedDataset(prefix)
    order = SampleOrder(pair.index, sampling)
    stream = [token for number in order.document_index for token in texts[number]]
    for k, number in enumerate(order.shuffle_index.tolist()):
        value = sample(prefix, k, sampling, "sample")

        assert [token for piece in value["pieces"] for token in piece["ids"]] == stream[7 * number : 7 * number + 8]
        assert (value["sample"], value["of"], value["num_epochs"]) == (k, (len(stream) - 1) // 7, 1)
        assert value["sampling"] == {"seq_length": 7, "seed": 3, "split": "1", "part": "train", "num_samples": None}
        for piece in value["pieces"]:
            assert piece["document"] == piece["sequence"]
            assert piece["num_sequence_tokens"] == len(texts[piece["document"]])
            first, count = piece["first_token"], piece["num_tokens"]
            assert piece["ids"] == texts[piece["document"]][first : first + count]


def test_pieces_of_sentences_name_their_documents(make_pair):
    value = sample(
        make_pair([[1, 2], [3], [], [4, 5, 6]], boundaries=[0, 0, 2, 4]), 0, Sampling(5, split="1"), "sample"
    )

    assert {piece["sequence"]: piece["document"] for piece in value["pieces"]} == {0: 1, 1: 1, 3: 2}


@pytest.mark.parametrize("change", [(34, "<i", 2**31 - 1), (42, "<q", 1), (58, "<q", 2), (34, "<i", -1)])
def test_samples_of_a_broken_pair_lead_to_verify(make_pair, change):
    prefix = make_pair([[1, 2, 3, 4, 5], [6, 7]])
    data = bytearray(idx_path(prefix).read_bytes())
    struct.pack_into(change[1], data, change[0], change[2])
    idx_path(prefix).write_bytes(data)

    for ask in (lambda: sample(prefix, 0, TINY, "sample"), lambda: where(prefix, sample=0, sampling=TINY)):
        with pytest.raises(FormatError, match="run: dataprep verify"):
            ask()


def test_a_sample_of_a_dataset_is_decoded(made):
    value = dataprep.training_sample(made, 0, dataprep.Sampling(3, split="1"))

    whole = [dataprep.decode(made, number) for number in range(4)]
    assert all(piece["text"] in whole[piece["document"]] for piece in value["pieces"])


# --- where it came from


def test_every_document_of_a_file_without_gaps_has_its_record(made, tmp_path):
    (entry,) = where(made, 1)["documents"]
    assert (entry["document"], entry["source"]["file"]) == (1, str(tmp_path / "a.jsonl"))
    assert (entry["source"]["first_row"], entry["source"]["last_row"]) == (1, 1)
    assert "url" not in entry["source"]


def test_all_documents_of_a_sample_are_led_back(made):
    value = where(made, sample=0, sampling=Sampling(8, split="1"))
    pieces = sample(made, 0, Sampling(8, split="1"))["pieces"]

    assert [entry["document"] for entry in value["documents"]] == [piece["document"] for piece in pieces]
    assert all(entry["source"]["file"].endswith(".jsonl") for entry in value["documents"])
    assert value["sample"] == 0


def test_a_document_of_a_merged_pair_is_led_through_its_input(made, make_pair, tmp_path):
    prefix = make_pair([[0]] * 5, prefix=tmp_path / "new")
    merged(made, tmp_path)
    found = [where(prefix, number)["documents"][0] for number in range(5)]

    assert [entry["input"] for entry in found] == [
        {"prefix": made, "document": 2},
        {"prefix": made, "document": 3},
        {"prefix": "/foreign", "document": 5},
        {"prefix": made, "document": 0},
        {"prefix": made, "document": 1},
    ]
    assert [Path(entry["source"]["file"]).name if entry["source"] else None for entry in found] == [
        "b.jsonl",
        "b.jsonl",
        None,
        "a.jsonl",
        "a.jsonl",
    ]
    assert found[4]["source"]["first_row"] == 1


def test_without_a_manifest_nothing_says_where(make_pair):
    prefix = make_pair([[1]])

    with pytest.raises(SpecError, match=r"has no manifest.*copy it along.*dataprep inspect"):
        where(prefix, 0)


@pytest.mark.parametrize("num_documents", [3, 4, 9])
def test_a_manifest_of_other_files_leads_to_verify_and_names_no_source(made, make_pair, num_documents):
    make_pair([[1]] * num_documents, prefix=Path(made))

    with pytest.raises(FormatError, match="the manifest beside it is of other files; run: dataprep verify"):
        where(made, 1)
    with pytest.raises(FormatError, match="the manifest beside it is of other files; run: dataprep verify"):
        where(made, sample=0, sampling=Sampling(2, split="1"))
    value = document(made, 1)
    assert (value["ids"], value["sound"]) == ([1], True)
    assert value["text"]
    assert "source" not in value
    assert value["notes"] == [f"no source is known: the manifest is of other files; run: dataprep verify {made}"]


def test_a_damaged_manifest_is_said(made, make_pair, tmp_path):
    prefix = make_pair([[0]] * 5, prefix=tmp_path / "new")
    merged(made, tmp_path)
    path = tmp_path / "new.manifest.json"
    text = path.read_text()
    value = json.loads(text)
    value["parts"][0]["recipe"] = 7
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match="damaged"):
        where(prefix, 0)
    value = json.loads(text)
    value["parts"][0]["provenance"][1]["file"] = 9
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match="damaged"):
        where(prefix, 0)


@pytest.mark.parametrize("ask", [{}, {"document": 0, "sample": 0, "sampling": TINY}, {"sample": 0}])
def test_one_thing_is_asked_for(make_pair, ask):
    with pytest.raises(SpecError, match="expected a document, or a sample"):
        where(make_pair([[1]]), **ask)
