"""What tests of the service share: servers and clients."""

from __future__ import annotations

import contextlib
import json
import re
import threading

import pytest


@pytest.fixture
def make_client(tmp_path, monkeypatch):
    """Makes clients, which keep cookies and follow no redirect: ``make_client(token=..., read_only=...)``.

    Answers are made anew for each request, so that tests see what they changed.
    """
    from starlette.testclient import TestClient

    from dataprep.service.web import sharing
    from dataprep.service.web.app import create_app
    from dataprep.service.web.settings import Settings

    monkeypatch.setattr(sharing, "KEPT_SECONDS", -1.0)
    monkeypatch.setattr(sharing, "LIBRARY_SECONDS", -1.0)

    def make(launch=None, base_url="http://127.0.0.1:8642", **settings):
        settings.setdefault("outputs", (tmp_path / "out",))
        app = create_app(Settings(**settings), launch)
        return TestClient(app, base_url, raise_server_exceptions=False, follow_redirects=False)

    return make


@pytest.fixture
def serving(tmp_path):
    """Starts servers on loopback: ``serving(launch=..., **settings)`` gives the server and its address."""
    from dataprep.service.web.app import create_app
    from dataprep.service.web.server import bind, make_server
    from dataprep.service.web.settings import Settings

    with contextlib.ExitStack() as stack:

        def start(launch=None, **given):
            settings = Settings(**({"outputs": (tmp_path / "out",), "port": 0} | given))
            sockets = bind(settings)
            server = make_server(create_app(settings, launch))
            thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
            thread.start()

            def stop():
                server.config.app.state.events.close()
                server.should_exit = True
                thread.join(timeout=60)
                assert not thread.is_alive()

            stack.callback(stop)
            return server, sockets[0].getsockname()[:2]

        yield start


@pytest.fixture
def csrf_of():
    """The code that the forms of a page carry."""
    return lambda html: re.search(r'<meta name="csrf" content="([0-9a-f]+)">', html)[1]


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """An output with one run that is published, of three records of which one is no document."""
    import dataprep

    folder = tmp_path_factory.mktemp("published")
    texts = [json.dumps({"text": text}) for text in ("first", "second")]
    (folder / "in.jsonl").write_text("\n".join([*texts, '{"text": 5}']) + "\n")
    dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out", settings=["runtime.max_rejects=1.0"])
    return folder / "out"
