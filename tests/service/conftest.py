"""What tests of the service share: servers and clients."""

from __future__ import annotations

import pytest


@pytest.fixture
def make_client(tmp_path):
    """Makes clients, which keep cookies and follow no redirect: ``make_client(token=..., read_only=...)``."""
    from starlette.testclient import TestClient

    from dataprep.service.web.app import create_app
    from dataprep.service.web.settings import Settings

    def make(launch=None, **settings):
        base = settings.pop("base_url", "http://127.0.0.1:8642")
        settings.setdefault("outputs", (tmp_path,))
        app = create_app(Settings(**settings), launch)
        return TestClient(app, base, raise_server_exceptions=False, follow_redirects=False)

    return make
