"""Rendered manifests fit the schemas of Kubernetes and of Dask's operator, in which a typo is an error."""

from __future__ import annotations

import copy
import functools
import zipfile
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from dataprep.cluster.kubernetes import render_text
from dataprep.specs.cluster import Kubernetes

pytestmark = pytest.mark.kubernetes

FREE = {"labels", "matchLabels", "nodeSelector", "selector", "stringData", "limits", "requests"}
"""Maps whose keys are anybody's own."""


def _manifests(form: str) -> list[dict[str, Any]]:
    spec = Kubernetes(
        form=form,
        image="registry.example/dataprep:1",
        claim="corpora",
        namespace="team",
        node_selector={"pool": "cpu"},
        secret="hub",
        user="1000:1000",
    )
    return list(yaml.safe_load_all(render_text(spec, ["run", "fineweb", "--tokenizer", "gpt2"])))


def _close(schema: Any) -> Any:
    """The schema with every object closed that names its properties."""
    if isinstance(schema, list):
        return [_close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in schema:
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.fixture(scope="module")
def dask_job(wheel: zipfile.ZipFile) -> jsonschema.Draft202012Validator:
    (name,) = (each for each in wheel.namelist() if each.endswith("crds/daskjob.yaml"))
    crd = yaml.load(wheel.read(name), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = (each for each in crd["spec"]["versions"] if each["name"] == "v1")
    schema = _close(version["schema"]["openAPIV3Schema"])
    schema["properties"].update(apiVersion={"const": "kubernetes.dask.org/v1"}, kind={"const": "DaskJob"}, metadata={})
    return jsonschema.Draft202012Validator(schema)


def _check_core(each: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validate.validate(each, validate.latest_version(), strict=True)


def _typos(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all keys that a schema names."""
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _typos(each, (*path, i))
    elif isinstance(value, dict) and not (path and path[-1] in FREE):
        for key, each in value.items():
            yield (*path, key)
            yield from _typos(each, (*path, key))


def _misspelt(value: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    result = copy.deepcopy(value)
    inner: Any = result
    for key in path[:-1]:
        inner = inner[key]
    inner[f"{path[-1]}x"] = inner.pop(path[-1])
    return result


@pytest.mark.parametrize("form", ["job", "daskjob"])
def test_core_objects_fit(form):
    kinds = []
    for each in _manifests(form):
        if each["kind"] != "DaskJob":
            _check_core(each)
            kinds.append(each["kind"])

    assert kinds == ["Secret", "NetworkPolicy", *(["Service", "Job"] if form == "job" else [])]


def test_every_misspelt_key_of_a_core_object_is_found(monkeypatch):
    pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    from kubernetes_validate import utils

    monkeypatch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))  # or they are read each time
    tried = 0
    for each in _manifests("job"):
        for path in _typos(each):
            if path[0] in ("apiVersion", "kind"):
                continue  # what says which schema it is
            with pytest.raises(Exception, match=f"{path[-1]}x"):
                _check_core(_misspelt(each, path))
            tried += 1

    assert tried > 80


def test_dask_job_fits(dask_job):
    (job,) = (each for each in _manifests("daskjob") if each["kind"] == "DaskJob")

    assert [error.message for error in dask_job.iter_errors(job)] == []


def test_every_misspelt_key_of_a_dask_job_is_found(dask_job):
    (job,) = (each for each in _manifests("daskjob") if each["kind"] == "DaskJob")
    paths = [path for path in _typos(job) if path[0] == "spec"]
    missed = [path for path in paths if next(dask_job.iter_errors(_misspelt(job, path)), None) is None]

    assert next(dask_job.iter_errors(job), None) is None, "or else every one of them is found, whatever it is"
    assert missed == []
    assert len(paths) > 150


def test_what_the_operator_makes_fits(operator):
    (job,) = (each for each in _manifests("daskjob") if each["kind"] == "DaskJob")
    deployments, services, runner = operator["components"](job)

    for each in (*deployments, *services, runner):
        _check_core(each)
    assert len(deployments) == 5
    names = {variable["name"] for variable in runner["spec"]["containers"][0]["env"]}
    addresses = {
        variable["value"]
        for pod in (runner, *(deployment["spec"]["template"] for deployment in deployments))
        for variable in pod["spec"]["containers"][0]["env"]
        if variable["name"] == "DASK_SCHEDULER_ADDRESS"
    }
    assert addresses == {f"tls://{services[0]['metadata']['name']}:8786"}, "ours, not the operator's tcp://"
    assert "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in names
    for service in services:
        assert service["spec"]["selector"].items() <= deployments[0]["spec"]["template"]["metadata"]["labels"].items()
