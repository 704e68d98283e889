"""The pages in a real browser: what people do there, that they can read it, and how it looks.

Screenshots of all pages go to the folder that DATAPREP_TEST_ARTIFACTS names; without it they are dropped.
"""

import contextlib
import importlib.resources
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.browser

TOKEN = "correct-horse-battery-staple"
SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
PATIENCE_MS = 60_000
NEVER = "0 0 1 1 *"

AXE = """() => axe.run({ resultTypes: ["violations"] }).then((found) => found.violations
  .map((each) => `${each.impact} ${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join("; ")}`))"""

CUT_OFF = """() => [...document.querySelectorAll("html, .card, .scroll, .top-inside")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && !each.closest("details"))
  .map((each) => `${each.className || each.tagName}: ${each.scrollWidth} > ${each.clientWidth}`)"""


@pytest.fixture(scope="module")
def chromium():
    """Debian's browser, driven by Playwright."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium here; apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with api.sync_playwright() as playwright:
        # Without a sandbox, which root has none of, and without /dev/shm, which is small in containers.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Opens pages as somebody new: ``visit(address, **settings)``; nothing may go wrong in them, nor leave the server.

    What a page may be answered with beside success stands in ``page.expected``.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE_MS)
    with contextlib.ExitStack() as stack:
        opened = []

        def start(address, **settings):
            context = chromium.new_context(**({"viewport": SIZES["desktop"]} | settings))
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.expected, page.problems = set(), []
            origin = re.match(r"http://[^/]+/", address)[0]

            def heard(message):
                if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
                    page.problems.append(message.text)

            def asked(request):
                if not request.url.startswith(origin):
                    page.problems.append(f"asks {request.url}")

            def answered(response):
                if response.status >= 400 and response.status not in page.expected:
                    page.problems.append(f"{response.status} {response.url}")

            page.on("console", heard)
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on("request", asked)
            page.on("response", answered)
            opened.append(page)
            page.goto(address)
            return page

        yield start
        for page in opened:
            assert page.problems == []


@pytest.fixture(scope="module")
def axe():
    """The source of axe-core, which finds what keeps people from using a page."""
    pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python")
    return importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def check(axe, tmp_path):
    """Holds a page to what all pages promise, light and dark, on a desk and on a phone; keeps how it looked."""
    folder = Path(os.environ.get("DATAPREP_TEST_ARTIFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def look(page, name):
        assert re.search(r"\S \u00b7 dataprep$", page.title())
        page.evaluate(f"() => {{ {axe}\n }}")  # by the debugger: the policy of the page lets nobody else add scripts
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.screenshot(path=folder / f"{name}-{scheme}-{size}.png", full_page=True)
                if (size, scheme) != ("phone", "dark"):  # of which all was seen: colours, and places
                    assert page.evaluate(AXE) == [], (name, size, scheme)
            assert page.evaluate(CUT_OFF) == [], (name, size)
        page.set_viewport_size(SIZES["desktop"])

    return look


def write_texts(path, texts, bad=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "".join(f"{x}\n" for x in bad))


def write_job(folder, name, **values):
    given = {"corpus": f"inbox/{name}/*.jsonl", "tokenizer": "sample", "output": "data", "settle_seconds": 0}
    folder.mkdir(exist_ok=True)
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in {**given, **values}.items()]
    (folder / f"{name}.yaml").write_text("".join(lines))


def wait_for(find, seconds=PATIENCE_MS / 1000):
    """What `find` gives, once it is there."""
    end = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


LONG = "customer-support-transcripts-anonymised-2026-second-half-de-en-fr"
STORIES = [
    f"Story {i}: \U0001f44d the dog, the cat & <b>the {'very ' * i}old</b> house.\n\tIt was n\u00efce."
    for i in range(40)
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A real server of jobs in all states, in a process of its own."""
    from dataprep.errors import DataprepError
    from dataprep.service.jobs import load_job
    from dataprep.service.running import run_job

    folder = tmp_path_factory.mktemp("site") / "jobs"
    inbox = folder / "inbox"
    write_job(folder, "nightly", schedule=NEVER, time_zone="Europe/Berlin", set=["runtime.max_rejects=0.9"])
    for number in range(3):
        bad = ['{"text": 17}', '{"title": "none"}', "no <b>json</b>"][:number]
        write_texts(inbox / "nightly" / f"{number}.jsonl", STORIES[number:], bad)
        run_job(load_job(folder / "nightly.yaml"))
    write_job(folder, "damaged", schedule=NEVER)
    for number in range(8):
        write_texts(inbox / "damaged" / f"shard-{number:05d}-of-00008.jsonl", STORIES[number:9])
    run_job(load_job(folder / "damaged.yaml"))
    for number in range(7):
        write_texts(inbox / "damaged" / f"shard-{number:05d}-of-00008.jsonl", ["changed"])
    with pytest.raises(DataprepError, match="append_only"):
        run_job(load_job(folder / "damaged.yaml"))
    for name in ("live", "scriptless"):
        # It looks at its files twice, so that there is a while in which it runs.
        write_job(folder, name, settle_seconds=2)
        write_texts(inbox / name / "a.jsonl", STORIES)
    write_job(folder, LONG, schedule=NEVER)
    write_texts(inbox / LONG / "part-0001.jsonl", STORIES)
    run_job(load_job(folder / f"{LONG}.yaml"))
    write_job(folder, "new", schedule=NEVER)
    (folder / "broken.yaml").write_text(
        "corpus: inbox/*.jsonl\ntokenizer: sample\noutput: data\nschedule: 61 2 * * *\n"
    )
    command = [sys.executable, "-m", "dataprep", "--quiet", "serve", "--jobs", folder, "--port", "0"]
    with (
        (folder.parent / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            address = process.stdout.readline().strip()
            assert address, (folder.parent / "log").read_text()
            yield SimpleNamespace(address=address.rstrip("/"), jobs=folder, output=folder / "data")
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def version(site):
    """Where the pages of the newest version of `nightly` are."""
    from dataprep.service.folders import output_id

    return f"{site.address}/datasets/{output_id(site.output)}~nightly~v000003"


def test_a_run_is_started_watched_and_looked_into(site, visit, check):
    from playwright.sync_api import expect

    import dataprep

    page = visit(f"{site.address}/jobs")
    page.get_by_role("link", name="live", exact=True).click()
    expect(page.locator("#history")).to_contain_text("It has not run yet")
    page.get_by_role("button", name="Run now").click()
    expect(page).to_have_url(f"{site.address}/jobs/live")  # and is not asked again what was said of the click
    page.evaluate("() => { window.loaded = 'once'; }")
    record = wait_for(lambda: next(iter((site.output / "live" / "runs").glob("000001.json")), None))
    process = json.loads(record.read_text())["pid"]
    os.kill(process, signal.SIGSTOP)
    try:
        expect(page.locator("#state")).to_have_text("running")
        expect(page.get_by_role("button", name="Run now")).to_have_count(0)
        expect(page.locator(".note")).to_have_count(0)
        assert page.evaluate("() => window.loaded") == "once"
        check(page, "job-running")
        page.locator("#history").get_by_role("link", name="#1").click()
        expect(page.locator("#state")).to_have_text("running")
        check(page, "run-running")
        page.evaluate("() => { window.loaded = 'once'; }")
    finally:
        os.kill(process, signal.SIGCONT)
    expect(page.locator("#state")).to_have_text("published")
    expect(page.locator("#progress")).to_contain_text("40")
    for part in ("events", "recipe"):  # there was none of it when the page was loaded
        expect(page.locator(f"#{part}")).to_be_visible()
    assert page.evaluate("() => window.loaded") == "once"

    page.get_by_role("link", name="Look inside").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("live v1")
    page.get_by_role("link", name="Read documents").click()
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text("Document 0 of 40")
    page.get_by_role("link", name="Next", exact=True).click()
    expect(heading).to_contain_text("Document 1 of")
    page.get_by_role("link", name="Previous", exact=True).click()
    expect(heading).to_contain_text("Document 0 of")
    page.get_by_label("Document", exact=True).fill("33")
    page.get_by_label("Document", exact=True).press("Enter")
    expect(heading).to_contain_text("Document 33 of")
    expect(page.locator("pre.text")).to_contain_text("<b>the very very")

    prefix = next((site.output / "live" / "parts").rglob("*.bin")).with_suffix("")
    ids = dataprep.open_dataset(prefix)[33].tolist()
    pieces = page.locator(".tokens .t")
    assert pieces.evaluate_all("(all) => all.map((each) => Number(each.dataset.id))") == ids
    sign = "(piece) => getComputedStyle(piece, '::before').content"
    assert pieces.first.evaluate(sign) in ("none", "normal")
    page.get_by_label("Show ids").check()
    assert pieces.first.evaluate(sign) == f'"{ids[0]}"'
    check(page, "document-ids")


def test_a_run_is_started_and_watched_without_scripts(site, visit):
    from playwright.sync_api import expect

    page = visit(f"{site.address}/jobs/scriptless", java_script_enabled=False)
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".note.good")).to_contain_text("It was started")
    seen = set()

    def ended():
        page.reload()
        seen.add(page.locator("#state").inner_text())
        return "published" in page.locator("#history").inner_text()

    wait_for(ended)
    assert "running" in seen
    page.locator("#history").get_by_role("link", name="#1").click()
    page.get_by_role("link", name="Look inside").click()
    page.get_by_role("link", name="Read documents").click()
    page.get_by_label("Document", exact=True).fill("39")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Document 39 of 40")


def test_a_job_is_paused_and_resumed(site, visit, check):
    from playwright.sync_api import expect

    page = visit(f"{site.address}/jobs/nightly")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#state")).to_have_text("paused")
    expect(page.locator("#notes")).to_contain_text("Nothing runs by itself")
    assert (site.output / "nightly" / "paused").is_file()
    check(page, "job-paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#state")).to_have_text("waiting")
    assert not (site.output / "nightly" / "paused").exists()


def test_rejects_are_seen(version, visit, check):
    from playwright.sync_api import expect

    page = visit(version)
    page.get_by_role("link", name="Rejects").click()
    expect(page.locator("pre.reject")).to_have_text(['{"text": 17}', '{"title": "none"}'])
    page.get_by_role("link", name="missing-text").click()
    expect(page.locator("pre.reject")).to_have_text(['{"title": "none"}'])
    page.get_by_role("link", name="part 2").click()
    expect(page.locator(".empty")).to_contain_text("None of this reason")
    page.get_by_role("link", name="All", exact=True).click()
    expect(page.locator("pre.reject")).to_have_text(['{"text": 17}'])
    check(page, "rejects")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("overview", "/"),
        ("runs", "/runs"),
        ("runs-none", "/runs?state=skipped"),
        ("run-published", "/runs/{output}/nightly/3"),
        ("run-failed", "/runs/{output}/damaged/2"),
        ("jobs", "/jobs"),
        ("job", "/jobs/nightly"),
        ("job-failed", "/jobs/damaged"),
        ("job-long", f"/jobs/{LONG}"),
        ("job-new", "/jobs/new"),
        ("job-broken", "/jobs/broken"),
        ("datasets", "/datasets"),
        ("versions", "/datasets/{output}~nightly"),
        ("dataset", "/datasets/{output}~nightly~v000003"),
        ("files", "/datasets/{output}~nightly~v000003/files"),
        ("document", "/datasets/{output}~nightly~v000003/documents/7"),
        ("sample", "/datasets/{output}~nightly~v000003/samples/0?split=1,0,0&seq_length=100"),
        ("sample-none", "/datasets/{output}~nightly~v000003/samples/0?seq_length=100000"),
        ("missing", "/nothing"),
    ],
)
def test_how_a_page_looks(name, path, site, visit, check):
    from dataprep.service.folders import output_id

    page = visit(f"{site.address}/healthz")
    page.expected |= {"missing": {404}, "sample-none": {409}}.get(name, set())
    page.goto(site.address + path.format(output=output_id(site.output)))
    check(page, name)


def test_pages_of_nothing(serving, visit, check, tmp_path):
    (tmp_path / "jobs").mkdir()
    _, (_, port) = serving(jobs=tmp_path / "jobs")
    page = visit(f"http://127.0.0.1:{port}/")
    for name in ("overview", "runs", "datasets", "jobs"):
        page.goto(f"http://127.0.0.1:{port}/{name.replace('overview', '')}")
        check(page, f"{name}-empty")


def test_logging_in(serving, visit, check, published):
    from playwright.sync_api import expect

    _, (_, port) = serving(outputs=(published,), token=TOKEN)
    page = visit(f"http://127.0.0.1:{port}/runs?state=published")
    page.expected.add(401)
    expect(page.get_by_label("Token of this server")).to_be_focused()
    check(page, "login")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the token of this server.")
    check(page, "login-wrong")
    page.get_by_label("Token of this server").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"http://127.0.0.1:{port}/runs?state=published")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token of this server")).to_be_visible()
    assert page.context.cookies() == []


def test_a_server_that_only_shows(site, serving, visit, check):
    from playwright.sync_api import expect

    _, (_, port) = serving(outputs=(), jobs=site.jobs, read_only=True)
    page = visit(f"http://127.0.0.1:{port}/jobs/damaged")
    expect(page.locator(".top")).to_contain_text("read-only")
    expect(page.get_by_role("button", name=re.compile("Run|Try|Pause|Resume"))).to_have_count(0)
    assert page.request.post(f"http://127.0.0.1:{port}/jobs/damaged/run").status == 403
    check(page, "read-only")


def test_pages_are_used_by_keyboard(site, visit):
    from playwright.sync_api import expect

    page = visit(f"{site.address}/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert (page.evaluate("() => document.activeElement.tagName"), outline) == ("A", "solid")
