"""Who may ask a server what, and what it refuses before a route sees it."""

import re

import pytest
from markupsafe import Markup

from dataprep.errors import SpecError
from dataprep.service.web.access import local
from dataprep.service.web.security import HEADERS, MOST_BYTES
from dataprep.service.web.sessions import SESSION_SECONDS, TRIES, TRY_SECONDS, Sessions, Tries
from dataprep.service.web.settings import Settings, read_token
from dataprep.service.web.showing import plain, templates

TOKEN = "correct-horse-battery-staple"
ALL_PAGES = ["/", "/runs", "/runs/x/y", "/jobs", "/nope"]


# --- who can reach it, and the token


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node7", "example.com"])
def test_where_others_reach_it_a_token_is_needed(host, tmp_path):
    with pytest.raises(SpecError, match="--token-file"):
        Settings((tmp_path,), host=host)

    assert not Settings((tmp_path,), host=host, token=TOKEN).is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_on_loopback_none_is(host, tmp_path):
    assert Settings((tmp_path,), host=host).is_loopback


@pytest.mark.parametrize(
    "token", ["short", "x" * 15, "with a space in the middle", "n\u00e4mlich-nicht-ascii", "x" * 20 + "\n"]
)
def test_a_token_that_can_be_guessed_or_sent_by_nobody_is_refused(token, tmp_path):
    with pytest.raises(SpecError, match="openssl"):
        Settings((tmp_path,), token=token)


def test_a_token_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("DATAPREP_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("DATAPREP_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    (tmp_path / "token").write_text("another-long-token-of-the-file\n")
    assert read_token(tmp_path / "token") == "another-long-token-of-the-file"
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SpecError, match="is empty"):
        read_token(tmp_path / "token")
    with pytest.raises(SpecError, match="cannot read"):
        read_token(tmp_path / "nothing")


def test_without_the_token_nothing_is_shown(make_client):
    client = make_client(token=TOKEN)

    for path in ALL_PAGES:
        answer = client.get(f"{path}?a=b")
        assert (answer.status_code, answer.text) == (303, "")
        assert answer.headers["location"] == f"/login?next={path.replace('/', '%2F')}%3Fa%3Db"
    for path in ("/api/v1/runs", "/api/v1/openapi.json", "/api/v1/events", "/metrics", "/api/nope"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/static/style.css").status_code == 200
    assert client.post("/jobs/x/run").status_code == 401


def test_a_program_sends_the_token(make_client):
    client = make_client(token=TOKEN)

    assert client.get("/api/v1/health", headers={"authorization": f"Bearer {TOKEN}"}).json()["read_only"] is False
    assert client.get("/api/v1/health", headers={"authorization": f"bearer  {TOKEN} "}).status_code == 200
    for wrong in (
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        b"Bearer \xff",
    ):
        answer = client.get("/api/v1/health", headers={"authorization": wrong})
        assert answer.status_code == 401, wrong
        assert TOKEN not in answer.text


def test_a_person_logs_in_and_out(make_client, csrf_of):
    client = make_client(token=TOKEN)
    form = client.get("/login?next=/runs")
    assert 'name="next" value="/runs"' in form.text

    answer = client.post("/login", data={"token": f" {TOKEN} ", "next": "/runs"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    assert re.fullmatch(
        r"dataprep-8642=\d+\.[0-9a-f]{32}\.[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Strict",
        answer.headers["set-cookie"],
    )
    page = client.get("/runs")
    assert page.status_code == 200
    assert client.get("/api/v1/runs").status_code == 200
    assert client.get("/login?next=/runs").headers["location"] == "/runs"

    assert client.post("/logout", data={"csrf": "0" * 64}).status_code == 403
    answer = client.post("/logout", data={"csrf": csrf_of(page.text)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert client.get("/runs").status_code == 303


def test_over_https_the_cookie_stays_there(make_client):
    client = make_client(token=TOKEN, base_url="https://127.0.0.1:8642")
    answer = client.post("/login", data={"token": TOKEN}, headers={"origin": "https://127.0.0.1:8642"})
    assert answer.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")


def test_a_second_server_with_the_token_knows_the_session(make_client):
    first, second, other = make_client(token=TOKEN), make_client(token=TOKEN), make_client(token=TOKEN + "2")
    first.post("/login", data={"token": TOKEN})
    for each in (second, other):
        each.cookies.update(first.cookies)

    assert second.get("/runs").status_code == 200
    assert other.get("/runs").status_code == 303


def test_a_session_ends_and_cannot_be_made_longer():
    now = 1e9
    sessions = Sessions(TOKEN, lambda: now)
    session = sessions.new()
    assert sessions.find(session.cookie).csrf == session.csrf

    now += SESSION_SECONDS - 1
    assert sessions.find(session.cookie) is not None
    now += 2
    assert sessions.find(session.cookie) is None
    end, nonce, code = session.cookie.split(".")
    for forged in (
        f"{int(end) + 100}.{nonce}.{code}",
        "",
        "..",
        f".{nonce}.{code}",
        session.cookie + "0",
        "\udcff.a.b",
    ):
        assert sessions.find(forged) is None
    assert sessions.find(None) is None


@pytest.mark.parametrize(
    "cookie", ["dataprep-8642=x", "dataprep-8642=1.2.3", "a=b; =; dataprep-8642", 'dataprep-8642="\\377', "\x01=2"]
)
def test_cookies_that_are_none_log_nobody_in(cookie, make_client):
    assert make_client(token=TOKEN).get("/runs", headers={"cookie": cookie}).status_code == 303


def test_tries_are_counted(make_client):
    client = make_client(token=TOKEN)
    for number in range(TRIES):
        if number % 2:
            assert client.post("/login", data={"token": "x" * 20}).status_code == 401
        else:
            assert client.get("/api/v1/runs", headers={"authorization": "Bearer wrong"}).status_code == 401
    answer = client.post("/login", data={"token": TOKEN})
    assert (answer.status_code, 0 < int(answer.headers["retry-after"]) <= TRY_SECONDS) == (429, True)
    assert client.get("/api/v1/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 429


def test_tries_are_forgotten_after_a_while_and_counted_by_address():
    now = 0.0
    tries = Tries(lambda: now)
    for _ in range(3 * TRIES):
        tries.wrong("a")
        now += 1
    assert tries.seconds_left("a") == TRY_SECONDS - TRIES + 1
    assert tries.seconds_left("b") == 0
    now += TRY_SECONDS
    assert tries.seconds_left("a") == 0
    for number in range(10_010):
        tries.wrong(str(number))
    assert len(tries._wrong) == 10_000


@pytest.mark.parametrize(
    ("goal", "where"),
    [
        ("/runs?page=2", "/runs?page=2"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("\\\\evil.example", "/"),
        ("/runs\r\nset-cookie: a=b", "/"),
        ("", "/"),
        ("javascript:alert(1)", "/"),
        ("/\u2028", "/"),
    ],
)
def test_a_login_leads_to_no_other_site(goal, where, make_client):
    assert local(goal) == where
    answer = make_client(token=TOKEN).post("/login", data={"token": TOKEN, "next": goal})
    assert answer.headers["location"] == where
    assert "a=b" not in answer.headers["set-cookie"]


# --- changes


def test_a_change_needs_the_code_of_the_session(make_client, csrf_of):
    client = make_client()
    assert client.post("/logout").status_code == 403  # no session yet
    code = csrf_of(client.get("/").text)

    assert client.post("/logout", data={"csrf": "0" * 64}).status_code == 403
    assert client.post("/logout", data={"csrf": ""}).status_code == 403
    assert client.post("/logout").status_code == 403
    assert client.post("/logout", content=f"csrf={code}").status_code == 403  # says not that it is a form
    assert client.post("/logout", data={"csrf": code}).status_code == 303


def test_the_code_is_that_of_one_session_and_a_script_sends_it_in_a_header(make_client, csrf_of):
    client = make_client()
    other = csrf_of(client.get("/").text)
    client.cookies.clear()
    code = csrf_of(client.get("/").text)

    assert code != other
    assert csrf_of(client.get("/runs").text) == code
    assert client.post("/logout", headers={"x-csrf-token": other}).status_code == 403
    assert client.post("/logout", headers={"x-csrf-token": code}).status_code == 303


def test_with_a_cookie_the_api_needs_the_code_and_with_the_token_not(make_client):
    client = make_client(token=TOKEN)
    client.post("/login", data={"token": TOKEN})

    assert client.post("/api/v1/nope").status_code == 403
    assert client.post("/api/v1/nope", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "BREW"])
def test_whatever_changes_is_checked(method, make_client):
    assert make_client().request(method, "/runs").status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://[half"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_what_another_site_sends_is_refused(headers, make_client, csrf_of):
    client = make_client()
    code = csrf_of(client.get("/").text)

    answer = client.post("/logout", data={"csrf": code}, headers=headers)
    assert (answer.status_code, "Another site" in answer.text) == (403, True)
    good = {"origin": "http://127.0.0.1:8642", "sec-fetch-site": "same-origin"}
    assert client.post("/logout", data={"csrf": code}, headers=good).status_code == 303


def test_a_read_only_server_changes_nothing(make_client, csrf_of):
    client = make_client(read_only=True, token=TOKEN)
    client.post("/login", data={"token": TOKEN})
    page = client.get("/").text
    code = csrf_of(page)

    assert "read-only" in page
    answer = client.post("/api/v1/jobs/x/run", headers={"x-csrf-token": code})
    assert (answer.status_code, "--read-only" in answer.json()["detail"]) == (403, True)
    assert client.post("/jobs/x/run", data={"csrf": code}).status_code == 403
    assert client.delete("/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 403
    assert client.post("/logout", data={"csrf": code}).status_code == 303


# --- what arrives


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "[half", "a@b:c", "\xff"]
)
def test_names_that_point_here_from_elsewhere_are_refused(host, make_client):
    answer = make_client().get("/api/v1/runs", headers={"host": host.encode("latin-1")})
    assert (answer.status_code, "localhost" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost", "LOCALHOST:1", "[::1]:8642", "127.0.0.5"])
def test_names_of_this_machine_are_not(host, make_client):
    assert make_client(host="127.0.0.5").get("/", headers={"host": host}).status_code == 200


def test_with_a_token_any_name_will_do(make_client):
    client = make_client(token=TOKEN)
    assert client.get("/", headers={"host": "evil.example", "authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_body_is_limited_whatever_its_header_says(make_client):
    client = make_client(token=TOKEN)
    headers = {"authorization": f"Bearer {TOKEN}"}

    assert client.post("/api/v1/nope", content=b"x" * MOST_BYTES, headers=headers).status_code == 404
    answer = client.post("/api/v1/nope", content=b"x" * (MOST_BYTES + 1), headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert client.post("/login", content=(b"x" * 4096 for _ in range(1000)), headers=headers).status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"csrf=%ff%fe",
        b"csrf=" + b"\xff" * 10,
        b"&" * 1000,
        b"csrf",
        b"=" * 99,
        b"a=1&" * 2000,
        b"csrf=%00%0d%0aset-cookie",
    ],
)
def test_forms_that_are_none(body, make_client):
    client = make_client()
    client.get("/")
    answer = client.post("/logout", content=body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/static/\x00",
        "/static/%00style.css",
        "/static/",
        "/static/" + "a" * 5000,
        "/runs/..%2f..%2f/etc",
        "/runs/%2e%2e/%2e%2e",
        "/runs/x/%00",
        "/%ff",
        "/runs/\u202e/x",
    ],
)
def test_paths_lead_nowhere_else(path, make_client):
    answer = make_client().get(path.replace("\x00", "%00"))
    assert answer.status_code in (404, 405)
    assert "root:" not in answer.text
    assert "def create_app" not in answer.text


def test_every_answer_carries_the_headers(make_client):
    client = make_client()
    for path in ("/", "/nope", "/healthz", "/static/live.js", "/api/v1/runs", "/api/nope"):
        answer = client.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        kept = "public, max-age=31536000, immutable" if path.startswith("/static/") else "no-store"
        assert answer.headers["cache-control"] == kept
        assert "server" not in answer.headers
    refused = client.post("/runs")
    assert {name: refused.headers[name] for name in HEADERS} == HEADERS


def test_a_mistake_shows_nothing_of_the_inside(make_client, caplog):
    client = make_client()

    def fail():
        raise RuntimeError("the secret is 42")

    client.app.add_api_route("/fails", fail)
    client.app.add_api_route("/api/fails", fail)
    page, answer = client.get("/fails"), client.get("/api/fails")

    assert (page.status_code, answer.status_code) == (500, 500)
    assert "secret" not in page.text + answer.text
    assert "Something went wrong" in page.text
    assert answer.json() == {"detail": "The server made a mistake, and its log says which."}
    assert {name: page.headers[name] for name in HEADERS} == HEADERS
    assert "the secret is 42" in caplog.text


def test_templates_hold_no_script_and_no_style():
    from dataprep.service.web.showing import HERE

    for path in (HERE / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:|https?://", text), path
        assert "|safe" not in text.replace(" ", ""), path


def test_characters_that_hide_are_shown():
    assert plain("a\tb\nc\x1b[31m\u202e\u200b\x00\ud800") == "a\tb\nc\\u001b[31m\\u202e\\u200b\\u0000\\ud800"


def test_whatever_a_template_writes_moves_and_hides_nothing():
    page = templates().from_string("{{ text }}|{{ text | plain }}|{{ markup }}")
    shown = "a\\u202e&lt;b&gt;\\u001b"
    assert page.render(text="a\u202e<b>\x1b", markup=Markup("<i>")) == f"{shown}|{shown}|<i>"
