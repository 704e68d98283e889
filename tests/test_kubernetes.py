"""Manifests as text. That they fit Kubernetes' schemas, and run, is for the tests marked `kubernetes`."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cluster.kubernetes import new_name, render, render_text, to_yaml
from dataprep.cluster.tls import make_certificate
from dataprep.errors import SpecError
from dataprep.specs.cluster import Kubernetes

GOLDEN = Path(__file__).with_name("golden")
ARGUMENTS = ["run", "fineweb", "--tokenizer", "gpt2", "--output", "out", "--set", "reader.separator=$(A) $$ \n"]


def _spec(**more):
    return Kubernetes(image="registry.example/dataprep:1", claim="corpora", **more)


def _container(objects):
    (job,) = (each for each in objects if each["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("form", ["job", "daskjob"])
def test_text_is_the_one_that_was_read_through(form):
    spec = _spec(form=form, namespace="team", node_selector={"pool": "1"}, secret="hub", user="1000:1000")

    text = to_yaml(render(spec, ARGUMENTS, "dataprep-0a1b2c3d", ("KEY\n", "CERTIFICATE\n")))

    assert text == (GOLDEN / f"kubernetes-{form}.yaml").read_text(encoding="utf-8")


def test_without_tls_is_said_and_nothing_of_it_is_left():
    text = render_text(_spec(insecure=True), ["run", "fineweb"])

    assert text.count("tls") == 0
    assert "NO TLS: whoever reaches the ports of these pods can run code in them" in text
    assert "tcp://" in text


def test_key_is_in_the_secret_alone():
    key, certificate = make_certificate()

    objects = render(_spec(), ["run", "fineweb"], "run", (key, certificate))

    assert [each["kind"] for each in objects if key in repr(each) or repr(key)[1:-1] in repr(each)] == ["Secret"]


def test_certificate_holds_for_clocks_that_are_behind():
    certificate = x509.load_pem_x509_certificate(make_certificate()[1].encode())

    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now - timedelta(hours=23)
    assert now + timedelta(days=364) < certificate.not_valid_after_utc < now + timedelta(days=366)


def test_text_says_until_when_its_certificate_holds():
    text = render_text(_spec(), ["run", "fineweb"])

    (secret,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "Secret")
    until = x509.load_pem_x509_certificate(secret["stringData"]["tls.crt"].encode()).not_valid_after_utc
    assert f"valid until {until:%Y-%m-%d}." in text


def test_every_rendering_has_a_name_and_a_key_of_its_own():
    texts = [render_text(_spec(), ["run", "fineweb"]) for _ in range(2)]

    names = [re.search(r"^# (\S+):", text)[1] for text in texts]
    assert names[0] != names[1]
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,51}", new_name())
    keys = [next(yaml.safe_load_all(text))["stringData"]["tls.key"] for text in texts]
    assert keys[0] != keys[1]


@settings(max_examples=30)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_arguments_arrive_as_they_are(arguments):
    objects = list(yaml.safe_load_all(to_yaml(render(_spec(), arguments, "run", None))))

    # What Kubernetes makes of them, where a variable of every name is set.
    arrived = [
        re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[0] == "$$" else "x", a) for a in _container(objects)["args"]
    ]
    assert arrived == ["dataprep", *arguments, "--set", "cluster.patience_seconds=1800"]


@pytest.mark.parametrize(
    "text", ["on", "y", "No", "1e3", "0x1", "0o7", "1_000", "1:30", ".5", "~", "null", "", "=", "<<"]
)
def test_what_some_reader_of_yaml_takes_for_something_else_is_quoted(text):
    assert re.search(r"""^value: (["']).*\1$""", to_yaml([{"value": text}]), re.MULTILINE)


def test_argument_that_no_manifest_can_hold():
    with pytest.raises(SpecError, match=r"'caf\\udce9' is not UTF-8"):
        render_text(_spec(), ["run", "caf\udce9"])


def test_script_is_one_for_every_posix_shell():
    command = _container(render(_spec(), ["run"], "run", None))["command"]

    assert command[:2] == ["/bin/sh", "-c"]
    subprocess.run(["sh", "-n"], input=command[2], text=True, check=True)


def test_pages_of_dask_are_on_loopback_wanted_or_not():
    for wanted in (False, True):
        text = _container(render(_spec(dashboard=wanted), ["run"], "run", None))["command"][2]
        assert ("127.0.0.1:8787 --no-dashboard &" in text) != wanted
        assert len(re.findall("--dashboard-address 127.0.0.1:", text)) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image", "two words"),
        ("memory", "2K"),
        ("memory", "0"),
        ("cpus", "1k"),
        ("claim", "Corpora"),
        ("mount", "data"),
        ("mount", "/data/"),
        ("mount", "/data/../etc"),
        ("namespace", "a.b"),
        ("user", "0:0"),
        ("user", "me"),
        ("workers", 0),
        ("form", "cronjob"),
    ],
)
def test_settings_that_kubernetes_would_refuse(key, value):
    asked = {"kind": "kubernetes", "image": "x", "claim": "y", key: value}

    with pytest.raises(SpecError, match=f"cluster settings: {key}"):
        Kubernetes.from_json(asked, "cluster settings")
