"""A plain HTTP client that sees every byte, and files to put into a repository."""

from __future__ import annotations

import http.client
import random
import time
from urllib.parse import urljoin, urlsplit

DATA = random.Random(1).randbytes(3 << 20)
SMALL = b'{"eos_token": "<|endoftext|>"}'
README = b"---\nlicense: odc-by\nconfigs:\n- config_name: default\n  data_files: data/*\n---\n# Words\n"
SPACED = "data/crossdeduped /a b.jsonl"
FILES = {"README.md": README, "config.json": SMALL, "data/one.parquet": DATA, SPACED: b"spaced\n", "empty.bin": b""}
ONE = "/datasets/org/name/resolve/main/data/one.parquet"


class Answer:
    """A response with what came of its body, and what ended it."""

    def __init__(self, response, body, error=None):
        self.status, self.headers, self.body, self.error = response.status, response.headers, body, error


def ask(url, method="GET", headers=None, body=None):
    """One request on a connection of its own, without following."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(split.hostname, split.port, timeout=60)
    try:
        connection.request(method, f"{split.path}?{split.query}".rstrip("?"), body, headers or {})
        response = connection.getresponse()
        got = bytearray()
        try:
            while block := response.read1(1 << 20):
                got += block
        except OSError as error:
            return Answer(response, bytes(got), error)
        return Answer(response, bytes(got))
    finally:
        connection.close()


def follow(url, **headers):
    """A GET with the same headers wherever it is led."""
    answer = ask(url, headers=headers)
    while answer.status in {302, 307}:
        url = urljoin(url, answer.headers["Location"])
        answer = ask(url, headers=headers)
    return answer


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
