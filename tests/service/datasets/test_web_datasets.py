"""Pages and API of datasets: what they show, that nothing in a document does anything there, and what is not there."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest

from dataprep.service.state import output_id
from dataprep.service.viewing.readings import Token
from dataprep.service.web.drawing import bars, levels, spans
from dataprep.service.web.showing import plain

API = "/api/v1"


@pytest.fixture
def site(shelf, make_client):
    """A client of a server that shows `shelf`."""
    return make_client(outputs=(shelf.output,))


@pytest.fixture(scope="session")
def ids(shelf):
    """The ids of `plain`, `many`, `nightly`, and of the output itself as `output`."""
    output = output_id(shelf.output)
    found = {name: f"{output}~{getattr(shelf, name)}" for name in ("plain", "many", "nightly")}
    return {**found, "output": output}


class Elements(HTMLParser):
    """What a browser makes of a page, as far as it matters here."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append((tag, named))
        if tag not in ("meta", "link", "input", "img", "br", "rect", "line"):
            self._open.append(named.get("class") or tag)

    def handle_endtag(self, tag):
        if self._open:
            self._open.pop()

    def handle_data(self, data):
        for name in set(self._open):
            self.texts[name] = self.texts.get(name, "") + data


def check_harmless(text: str) -> Elements:
    """No script, style or handler of anybody's but ours, and no character that hides or turns others."""
    page = Elements(text)
    for tag, attributes in page.tags:
        assert tag != "script" or attributes["src"].startswith("/static/")
        assert tag not in ("style", "iframe", "object", "base")
        assert tag != "img" or attributes["src"].startswith("/static/")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        for name in ("href", "src", "action"):
            assert attributes.get(name, "/").startswith(("/", "#"))
    assert plain(text) == text
    return page


# --- pages


def test_the_list_leads_to_every_dataset(site, shelf, ids):
    answer = site.get("/datasets")
    page = check_harmless(answer.text)

    assert answer.status_code == 200
    links = {attributes.get("href") for tag, attributes in page.tags if tag == "a"}
    for name in ("plain", "many", "nightly"):
        assert f"/datasets/{ids[name]}" in links
        assert site.get(f"/datasets/{ids[name]}").status_code == 200
    assert site.get(f"/datasets?output={ids['output']}").status_code == 200
    assert [site.get(f"/datasets?{query}").status_code for query in ("page=2", "output=x", "page=0")] == [404, 404, 422]


def test_a_run_leads_to_the_dataset_that_it_made(site, shelf, ids):
    work = next(path for path in (shelf.output / "work").iterdir() if shelf.plain.endswith(path.name[:8]))
    text = site.get(f"/runs/{ids['output']}/{work.name}").text

    assert f'href="/datasets/{ids["plain"]}"' in text
    assert f'href="/runs/{ids["output"]}/{work.name}/rejects"' in text


def test_no_datasets_say_how_to_make_one(make_client, tmp_path):
    text = make_client(outputs=(tmp_path / "none",)).get("/datasets").text

    assert "No datasets yet" in text
    assert f"dataprep run sample --tokenizer sample --output {tmp_path / 'none'}" in text


def test_a_dataset_page_has_its_figures_proof_and_lines(site, shelf, ids):
    text = site.get(f"/datasets/{ids['plain']}").text
    page = check_harmless(text)
    prefix = shelf.output / shelf.plain / "hostile_text_document"

    assert f"--data-path {prefix}" in text
    assert f"dataprep verify {prefix}" in text
    assert "proven" in text
    assert "HuggingFaceTokenizer" in text
    assert {"not-json", "invalid-utf8", "missing-text"} <= set(re.findall(r"reason=([\w-]+)", text))
    rects = [attributes for tag, attributes in page.tags if tag == "rect" and "x" in attributes]
    assert rects
    assert all(float(each["height"]) >= 0 for each in rects)


def test_versions_are_listed_and_each_has_a_page(site, shelf, ids):
    text = site.get(f"/datasets/{ids['nightly']}").text
    check_harmless(text)
    assert [f"/datasets/{ids['nightly']}~v00000{number}" in text for number in (1, 2)] == [True, True]
    newest = site.get(f"/datasets/{ids['nightly']}~v000002").text
    check_harmless(newest)
    assert f"--data-args-path {shelf.output}/nightly/v000002/data_args.txt" in newest
    assert "name versions" not in newest
    assert site.get(f"/datasets/{ids['nightly']}~v000003").status_code == 404


def test_documents_are_shown_and_do_nothing(site, shelf, ids):
    for number, text in enumerate(shelf.texts):
        answer = site.get(f"/datasets/{ids['plain']}/documents/{number}")
        page = check_harmless(answer.text)
        assert page.texts["text"] == plain(text) + "<|endoftext|>"
        titles = [attributes["title"] for tag, attributes in page.tags if attributes.get("class", "").startswith("t ")]
        listed = [int(each) for each in page.texts["ids"].split()]
        assert [int(re.match(r"id (\d+)", title)[1]) for title in titles] == listed
        assert "onerror=alert(1)" in html.unescape(answer.text)  # the name of its file


def test_documents_lead_to_each_other_and_are_found_by_number(site, shelf, ids):
    home = f"/datasets/{ids['plain']}/documents"
    last = len(shelf.texts) - 1

    links = re.findall(rf'href="{home}/(\d+)"', site.get(f"{home}/3").text)
    assert links == ["0", "2", "4", str(last)]
    answer = site.get(f"{home}?number=5")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{home}/5")
    assert site.get(f"{home}?number=//evil.example").headers["location"] == f"{home}/%2F%2Fevil.example"
    assert "\n" not in site.get(f"{home}?number=5%0d%0aset-cookie:x").headers["location"]


@pytest.mark.parametrize("number", ["7", "-1", "1.5", "1e3", "x", "99999999999999999999", "0x1", "%E0%A4%A9", "\u0663"])
def test_a_number_that_is_none_of_a_document(site, ids, number):
    answer = site.get(f"/datasets/{ids['plain']}/documents/{number}")

    assert answer.status_code == 404
    assert "holds documents 0 to 6" in answer.text


def test_a_long_document_is_paged(site, ids):
    home = f"/datasets/{ids['many']}/documents/300"
    text = site.get(home).text
    count = int(re.search(r"of ([\d,]+)</span>\s*</nav>", text)[1].replace(",", ""))
    places = {int(place) for place in re.findall(r"first=(\d+)", text)}
    assert places == {2000, (count - 1) // 2000 * 2000}
    end = site.get(f"{home}?first={max(places)}")
    assert "&lt;|endoftext|&gt;" in end.text
    assert [site.get(f"{home}?first={first}").status_code for first in (count, 10**15, -1, "x", 1.5)] == [404, 404] + [
        422
    ] * 3


def test_a_sample_marks_its_documents(site, ids):
    home = f"/datasets/{ids['nightly']}~v000002/samples"
    answer = site.get(f"{home}/0?seq_length=11&split=1,0,0&pair=1")
    page = check_harmless(answer.text)

    found = [attributes["aria-label"] for tag, attributes in page.tags if attributes.get("class") == "piece"]
    assert len(found) == 2
    assert all(re.fullmatch(r"Document [345]", each) for each in found)
    moved = site.get(f"{home}?seq_length=11&split=1%2C0%2C0&number=1&wanted=")
    assert moved.headers["location"] == f"{home}/1?seq_length=11&split=1%2C0%2C0"


def test_a_training_that_megatron_would_not_begin_says_why(site, ids):
    first = site.get(f"/datasets/{ids['plain']}/samples")
    assert first.status_code == 200
    for part in ("leaves no tokens", "Sample 0", 'name="seq_length" type="number" min="1" max="1048576" value="128"'):
        assert part in first.text  # why not the usual one, and one that can be
    check_harmless(first.text)
    home = f"/datasets/{ids['plain']}/samples/0"
    answer = site.get(f"{home}?seq_length=4096")
    assert answer.status_code == 409
    retry = html.unescape(re.search(r'href="([^"]+split=1%2C0%2C0[^"]*)"', answer.text)[1])
    assert "seq_length=128" in retry
    assert site.get(retry).status_code == 200
    assert "seed=0&amp;" in site.get(f"{home}?seq_length=10&split=1,0,0&seed=0").text
    for query in ("seq_length=0", "seq_length=x", "seed=-1", "seed=4294967296", "part=x", "split=%3Cb%3E", "wanted=0"):
        answer = site.get(f"{home}?{query}")
        assert answer.status_code in (409, 422)
        check_harmless(answer.text)
    assert site.get(f"/datasets/{ids['plain']}/samples/10?seq_length=100&split=1,0,0").status_code == 404
    assert site.get(f"/datasets/{ids['plain']}/samples/-1?seq_length=100&split=1,0,0").status_code == 404
    assert site.get(f"/datasets/{ids['plain']}/samples/0?seq_length=10&split=1,0,0&pair=5").status_code == 404


def test_rejects_are_shown_and_do_nothing(site, shelf, ids):
    work = next(path for path in (shelf.output / "work").iterdir() if (path / "rejects" / "rejects.jsonl").exists())
    for address in (f"/datasets/{ids['plain']}/rejects", f"/runs/{ids['output']}/{work.name}/rejects"):
        answer = site.get(address)
        page = check_harmless(answer.text)
        assert answer.status_code == 200
        assert '{"text": <b>no json</b>' in page.texts["reject"]
        assert '{"text": "\\xff\\u001b[2J\\u202e"}' in page.texts["reject"]
        one = check_harmless(site.get(f"{address}?reason=missing-text").text)
        assert one.texts["badge warning"] == "missing-text" * 2
        assert "None of this reason" in site.get(f"{address}?reason=%3Cb%3E").text
        assert [site.get(f"{address}?position={place}").status_code for place in (1, 10**9, -1, "x")] == [
            404,
            404,
            422,
            422,
        ]
    assert "No rejects" in site.get(f"/datasets/{ids['many']}/rejects").text
    assert "No rejects" in site.get(f"/datasets/{ids['nightly']}~v000002/rejects?part=1").text
    assert site.get(f"/datasets/{ids['nightly']}~v000002/rejects?part=2").status_code == 404
    assert site.get(f"/runs/{ids['output']}/nosuch/rejects").status_code == 404
    assert site.get(f"/runs/{ids['output']}/..%2Fwork/rejects").status_code == 404


def test_source_files_are_listed(site, ids):
    page = check_harmless(site.get(f"/datasets/{ids['plain']}/files").text)

    assert page.texts["name"] == "a <img src=x onerror=alert(1)>.jsonl"
    assert site.get(f"/datasets/{ids['plain']}/files?page=2").status_code == 404


@pytest.mark.parametrize(
    "name",
    ["nosuch", "{o}~..", "{o}~..%2F..", "%2e%2e", "{o}~%2e%2e%2fwork", "{o}~work", "{o}~a%00", "{o}~<script>", "%ff"],
)
def test_what_is_not_listed_has_no_page(site, ids, name):
    name = name.replace("{o}", ids["output"])
    for rest in ("", "/files", "/documents/0", "/samples/0?seq_length=8", "/rejects", "/versions", "/lengths"):
        for start in ("", API):
            answer = site.get(f"{start}/datasets/{name}{rest}")
            assert answer.status_code in (404, 405), answer.request.url
            if not start:
                check_harmless(answer.text)


def test_damaged_files_are_said_to_be(shelf, tmp_path, make_client):
    copy = shelf.copy(tmp_path / "copy")
    site, name = make_client(outputs=(copy.output,)), f"{output_id(copy.output)}~{copy.plain}"
    (copy.output / copy.plain / "hostile_text_document.bin").write_bytes(b"")
    outside = tmp_path / "outside"
    (copy.output / copy.plain / "hostile_text_document.idx").rename(outside)
    (copy.output / copy.plain / "hostile_text_document.idx").symlink_to(outside)
    for address in (f"/datasets/{name}/documents/0", f"{API}/datasets/{name}/documents/0"):
        answer = site.get(address)
        assert answer.status_code == 409
        assert "lies elsewhere" in answer.text
    assert "lies elsewhere" in site.get(f"/datasets/{name}").text
    (copy.output / copy.plain / "manifest.json").write_text("{}")
    assert site.get(f"/datasets/{name}").status_code == 409
    assert "unreadable" in site.get("/datasets").text


def test_a_shared_token_hides_nothing(shelf, make_client, ids):
    """The routes are behind the guard like all others."""
    site = make_client(outputs=(shelf.output,), token="0123456789abcdef0123")

    assert site.get(f"{API}/datasets").status_code == 401
    assert site.get(f"/datasets/{ids['plain']}/documents/0").status_code in (303, 401)
    headers = {"authorization": "Bearer 0123456789abcdef0123"}
    assert site.get(f"{API}/datasets", headers=headers).json()["num_datasets"] == 3


# --- the API


def test_the_api_gives_what_pages_show(site, shelf, ids):
    def get(path, **query):
        answer = site.get(f"{API}{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert {row["id"] for row in get("/datasets")["datasets"]} == {ids[name] for name in ("plain", "many", "nightly")}
    detail = get(f"/datasets/{ids['plain']}")
    assert detail["rejects"] == {"not-json": 3, "invalid-utf8": 2, "missing-text": 2}
    assert get(f"/datasets/{ids['nightly']}")["row"]["id"] == f"{ids['nightly']}~v000002"
    assert [row["version"] for row in get(f"/datasets/{ids['nightly']}/versions")["versions"]] == [2, 1]
    assert get(f"/datasets/{ids['many']}/lengths")["num_counted"] == 301
    assert get(f"/datasets/{ids['nightly']}/files")["num_files"] == 2
    document = get(f"/datasets/{ids['plain']}/documents/1", count=3)
    assert (len(document["tokens"]), document["first_token"]) == (3, 0)
    texts = [get(f"/datasets/{ids['plain']}/documents/{i}")["text"] for i in range(7)]
    assert texts == [text + "<|endoftext|>" for text in shelf.texts]
    sample = get(f"/datasets/{ids['nightly']}/samples/0", seq_length=11, split="1,0,0", pair=1, count=4)
    assert sum(len(piece["tokens"]) for piece in sample["pieces"]) == 4
    rejects = get(f"/datasets/{ids['plain']}/rejects", reason="missing-text")
    assert [each["reason"] for each in rejects["rejects"]] == ["missing-text"] * 2
    work = next((shelf.output / "work").iterdir()).name
    assert get(f"/runs/{ids['output']}/{work}/rejects")["path"].endswith("rejects.jsonl")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/documents/7", 404),
        ("/documents/-1", 422),
        ("/documents/1.5", 422),
        (f"/documents/{10**30}", 404),
        ("/documents/" + "9" * 5000, 422),
        ("/documents/0?first=1000", 404),
        ("/documents/0?count=0", 422),
        ("/documents/0?count=10001", 422),
        ("/samples/0", 422),
        ("/samples/0?seq_length=8", 409),
        ("/samples/0?seq_length=8&split=x", 409),
        ("/samples/9999?seq_length=8&split=1,0,0", 404),
        ("/rejects?position=1", 404),
        ("/files?page=2", 404),
        ("/versions", 404),
    ],
)
def test_the_api_refuses_in_json(site, ids, path, status):
    answer = site.get(f"{API}/datasets/{ids['plain']}{path}")

    assert answer.status_code == status
    assert answer.json().keys() == {"detail"}


def test_every_answer_of_the_api_is_declared(site):
    paths = site.get(f"{API}/openapi.json").json()["paths"]
    mine = {path: each["get"] for path, each in paths.items() if "/datasets" in path or path.endswith("/rejects")}

    assert len(mine) == 9
    for path, operation in mine.items():
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        assert {"401", "404", "422"} <= operation["responses"].keys(), path


# --- drawing


def test_bars_are_as_high_as_their_shares():
    from dataprep.service.viewing.answers import Bin

    found = bars(
        [Bin(first=1, last=1, num_documents=3, num_tokens=3), Bin(first=2, last=3, num_documents=1, num_tokens=3)]
    )
    assert [(bar.documents, bar.tokens, bar.lengths, bar.name) for bar in found] == [
        (200.0, 133.33, "1", "1"),
        (66.67, 133.33, "2 to 3", "2"),
    ]
    assert [(each.height, each.name) for each in levels(found)] == [(146.67, "20 %"), (93.33, "40 %"), (40.0, "60 %")]
    assert bars([]) == levels([]) == []


def test_tokens_say_what_they_are():
    def text(*tokens):
        return str(spans(tokens, 7))

    assert text(Token(id=5, text="<b>")) == '<span class="t t1" data-id="5" title="id 5, token 7">&lt;b&gt;</span>'
    assert text(Token(id=5, text="a\n\tb")).endswith(">a<i>\u21b5</i>\n<i>\u21e5</i>\tb</span>")
    assert text(Token(id=5, text="")).endswith("><i>\u2205</i></span>")
    assert text(Token(id=5, text="\u202e")).endswith(">\\u202e</span>")
    assert 'class="t special"' in text(Token(id=5, text="<s>", kind="special"))
    assert "&lt;9&gt;" in text(Token(id=9, kind="unknown"))
    assert text(Token(id=9, kind="id")) == '<span class="t t1" data-id="9" title="id 9, token 7">9</span> '
    twice = [Token(id=i, hex=each, character="\u4e2d") for i, each in enumerate(("e4", "b8 ad", "e4 b8", "ad"))]
    assert text(*twice).count("<ruby>") == 2
    assert text(*twice).count("<rt>\u4e2d</rt></ruby>") == 2
    assert "<ruby>" not in text(Token(id=1, hex="ff"))
    assert json.dumps(text(*twice[:1])).count("e4") == 2
