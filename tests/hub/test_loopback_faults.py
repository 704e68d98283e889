"""The loopback hub goes wrong exactly as told, as often as told, and says so."""

from __future__ import annotations

import time
from urllib.parse import urljoin

import pytest
from loopback_probe import DATA, FILES, ONE, ask, follow


@pytest.fixture
def repo(hub):
    return hub.add("datasets", "org/name", FILES)


@pytest.mark.parametrize("held", ["memory", "disk"])
@pytest.mark.parametrize(("what", "error"), [("close", None), ("reset", ConnectionResetError), ("stall", None)])
def test_connection_ends_after_exactly_so_many_bytes(hub, tmp_path, held, what, error):
    (tmp_path / "file").write_bytes(DATA)
    hub.add("datasets", "org/name", {"data/one.parquet": DATA if held == "memory" else tmp_path / "file"})
    at = 1_234_567
    fault = hub.fault(what, "*/one.parquet", at=at, seconds=0.2)

    start = time.monotonic()
    cut = follow(hub.url + ONE)

    assert cut.body == DATA[:at]
    assert (fault.fired, hub.served()) == (1, at)
    assert cut.error is None if error is None else isinstance(cut.error, error)
    assert time.monotonic() - start >= (0.2 if what == "stall" else 0)
    assert follow(hub.url + ONE).body == DATA


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("url", [ONE, "/api/datasets/org/name"])
@pytest.mark.parametrize("what", ["close", "reset"])
def test_connection_ends_before_any_answer(hub, repo, method, url, what):
    fault = hub.fault(what, method="*")

    with pytest.raises(ConnectionError):
        ask(hub.url + url, method)
    assert fault.fired == 1
    assert ask(hub.url + url, method).status in {200, 302}
    assert hub.requests[0].status == 0


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 403, 404])
def test_status_comes_as_often_as_told_with_its_headers(hub, repo, status):
    fault = hub.fault("status", "*/config.json", status=status, times=2, headers={"Retry-After": "7"})
    url = f"{hub.url}/datasets/org/name/resolve/main/config.json"

    answers = [ask(url) for _ in range(3)]

    assert [answer.status for answer in answers] == [status, status, 200]
    assert [answer.headers["Retry-After"] for answer in answers] == ["7", "7", None]
    assert answers[0].headers["X-Error-Code"] is None
    assert (fault.fired, hub.faults) == (2, [])


def test_fault_concerns_only_what_it_matches(hub, repo):
    fault = hub.fault("status", "*/one.parquet", side="cdn")
    head = hub.fault("status", "*/one.parquet", method="HEAD", status=500)

    assert ask(f"{hub.url}/datasets/org/name/resolve/main/config.json").status == 200
    assert ask(hub.url + ONE).status == 302
    assert (fault.fired, head.fired) == (0, 0)
    assert ask(hub.url + ONE, "HEAD").status == 500
    assert follow(hub.url + ONE).status == 503
    assert follow(hub.url + ONE).status == 200


@pytest.mark.parametrize("held", ["memory", "disk"])
def test_sixteen_bytes_are_corrupted(hub, tmp_path, held):
    (tmp_path / "file").write_bytes(DATA)
    hub.add("datasets", "org/name", {"data/one.parquet": DATA if held == "memory" else tmp_path / "file"})
    fault = hub.fault("corrupt", "*/one.parquet", at=100)

    body = follow(hub.url + ONE).body

    assert [i for i, (a, b) in enumerate(zip(body, DATA, strict=True)) if a != b] == list(range(100, 116))
    assert fault.fired == 1
    assert hub.served() == len(DATA)


def test_short_body_agrees_with_its_headers(hub, repo):
    hub.fault("short", "*/one.parquet", at=1000, times=2)
    whole, part = follow(hub.url + ONE), follow(hub.url + ONE, Range="bytes=50-")

    assert (whole.status, whole.body, whole.headers["Content-Length"]) == (200, DATA[:1000], "1000")
    assert (part.status, part.body) == (206, DATA[50:1050])
    assert part.headers["Content-Range"] == f"bytes 50-1049/{len(DATA)}"


def test_ranges_are_ignored_wrong_or_lied_about(hub, repo):
    faults = [hub.fault(what, "*/one.parquet", shift=10) for what in ("ignore_range", "wrong_range", "lying_range")]
    assert follow(hub.url + ONE).body == DATA
    assert [fault.fired for fault in faults] == [0, 0, 0]

    ignored, wrong, lying = (follow(hub.url + ONE, Range="bytes=100-199") for _ in range(3))

    assert (ignored.status, ignored.body) == (200, DATA)
    assert (wrong.status, wrong.body, wrong.headers["Content-Range"]) == (
        206,
        DATA[90:190],
        f"bytes 90-189/{len(DATA)}",
    )
    assert (lying.status, lying.body) == (206, DATA[90:190])
    assert lying.headers["Content-Range"] == f"bytes 100-199/{len(DATA)}"
    assert [fault.fired for fault in faults] == [1, 1, 1]


def test_page_of_html_stands_for_a_file(hub, repo):
    hub.fault("html", "*/one.parquet")
    answer = ask(hub.url + ONE)

    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/html")
    assert b"<html>" in answer.body
    assert hub.served() == 0


def test_redirects_never_end(hub, repo):
    hub.fault("redirect_loop", "*/one.parquet")
    url = hub.url + ONE
    for _ in range(30):
        answer = ask(url)
        assert answer.status == 302
        url = urljoin(url, answer.headers["Location"])


def test_unknown_fault_is_refused(hub):
    with pytest.raises(ValueError, match="unknown fault 'clsoe'"):
        hub.fault("clsoe")
