"""The loopback hub of tests/hub: a fresh one for each test, and what its clients, here or in a process, need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    """The file beside this one. Tests are no package, and no folder of theirs is on sys.path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# In the order in which one imports the other; tests may import from them as well.
_load("loopback_probe")
_load("loopback_repository")
_load("loopback_handler")
LoopbackHub = _load("loopback_hub").LoopbackHub

SETTINGS = {
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    "HF_HUB_ETAG_TIMEOUT": "2",
}
FOREIGN = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_")


def _outside(name: str) -> bool:
    """A setting of whoever runs the tests that would lead a client away from the loopback hub."""
    return name.startswith(FOREIGN) or name.lower().endswith("_proxy")


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    """An empty hub at hub.url; its threads end with the test, and an error inside it fails the test."""
    server = LoopbackHub()
    try:
        yield server
    finally:
        server.close()
    assert not server.errors


@pytest.fixture
def hub_environment(hub: LoopbackHub, tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose hub is `hub`, without a token and with an empty cache in tmp_path."""
    kept = {name: value for name, value in os.environ.items() if not _outside(name)}
    return {**kept, **SETTINGS, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf-home")}


@pytest.fixture
def here(hub: LoopbackHub, hub_client: ModuleType, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """The hub, as what dataprep inside the test's own process takes for the hub."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return hub


@pytest.fixture
def dataprep_cli(hub_environment: dict[str, str], tmp_path: Path):
    """Run the command line in a process of its own, in tmp_path: `dataprep_cli("run", "fineweb", NAME="value")`."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dataprep", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=hub_environment | environment, capture_output=True, text=True, timeout=240
        )

    return run


@pytest.fixture
def hub_client(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """huggingface_hub inside the test's own process: online, no token, cache in tmp_path, sessions closed at the end.

    It reads most settings when it is imported, which another test may have done; `endpoint=hub.url` is to be given.
    """
    for name in filter(_outside, list(os.environ)):
        monkeypatch.delenv(name)
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 2)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf-cache"))
    huggingface_hub.close_session()
    yield huggingface_hub
    huggingface_hub.close_session()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, bytes], None]]:
    """An S3 server on loopback (moto's), which AWS_ENDPOINT_URL names; `s3("bucket/key", content)` puts an object."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    buckets = set()

    def put(path: str, content: bytes) -> None:
        bucket, _, key = path.partition("/")
        if bucket not in buckets:
            client.create_bucket(Bucket=bucket, ACL="public-read")
            buckets.add(bucket)
        client.put_object(Bucket=bucket, Key=key, Body=content, ACL="public-read")

    s3fs.S3FileSystem.clear_instance_cache()
    yield put
    s3fs.S3FileSystem.clear_instance_cache()
    client.close()
    server.stop()
