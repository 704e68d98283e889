"""Manifests of trainings fit what the packages of Kubeflow's operators say of their objects; pods fit Kubernetes'.

DATAPREP_TEST_KUBEFLOW names a folder with the two wheels, which are read and never installed:

    pip download --no-deps kubeflow-training==1.9.4 kubeflow-trainer-api==2.3.0
"""

from __future__ import annotations

import ast
import copy
import functools
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep.train.launchers import kubernetes

pytestmark = pytest.mark.kubernetes

FREE = {"labels", "annotations", "nodeSelector", "limits", "requests", "data", "pytorchReplicaSpecs"}
"""Maps whose keys are anybody's own."""

LAUNCH = {
    "image": "registry.example/megatron:1",
    "claim": "fsx-claim",
    "namespace": "team",
    "efa_per_node": 32,
    "instance_type": "p5.48xlarge",
    "cpu_per_node": "90",
    "memory_per_node": "900Gi",
    "token_secret": "hub",
    "environment": {"OWN": "1"},
    "max_restarts": 3,
}
PRIMITIVES = {"str": str, "int": int, "bool": bool, "float": float}


def _wheel(name: str) -> Path:
    folder = Path(os.environ.get("DATAPREP_TEST_KUBEFLOW") or "/nowhere")
    found = sorted(folder.glob(f"{name}-*.whl"))
    if not found:
        pytest.skip(f"DATAPREP_TEST_KUBEFLOW names no folder with a wheel of {name}: pip download --no-deps")
    return found[-1]


def _objects(make_training, kind: str, nodes: int = 2) -> list[dict[str, Any]]:
    changes = {"parallel": {"nodes": nodes, "gpus_per_node": 8}, "launch": {**LAUNCH, "kind": kind}}
    return kubernetes.objects(*make_training("/fsx/it's", **changes))


def _check_core(each: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validate.validate(each, validate.latest_version(), strict=True)


def _as_pod(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template["metadata"]}}


@pytest.fixture(scope="module")
def models() -> dict[str, dict[str, Any]]:
    """Of kubeflow-training: class -> JSON key -> type, and under ``required`` those that must be there."""
    result = {}
    with zipfile.ZipFile(_wheel("kubeflow_training")) as wheel:
        for name in wheel.namelist():
            if "/models/kubeflow_org_v1" in name:
                text = wheel.read(name).decode()
                (found,) = (each for each in ast.parse(text).body if isinstance(each, ast.ClassDef))
                tables = {
                    each.targets[0].id: ast.literal_eval(each.value)
                    for each in found.body
                    if isinstance(each, ast.Assign)
                }
                keys = tables["attribute_map"]
                required = {keys[one] for one in re.findall(r"Invalid value for `(\w+)`, must not be `None`", text)}
                types = {keys[one]: kind for one, kind in tables["openapi_types"].items()}
                result[found.name] = {"types": types, "required": required}
    return result


def _faults(models: dict[str, dict[str, Any]], value: Any, kind: str) -> Iterator[str]:
    """What is wrong with a value of a type."""
    if found := re.fullmatch(r"(?:dict\(str, |list\[)(.*)[)\]]", kind):
        for each in value.values() if kind.startswith("dict") else value:
            yield from _faults(models, each, found[1])
    elif kind in models:
        types, required = models[kind]["types"], models[kind]["required"]
        yield from (f"{kind}: no {key}" for key in required - set(value))
        for key, each in value.items():
            if key in types:
                yield from _faults(models, each, types[key])
            else:
                yield f"{kind}: what is {key}"
    elif kind == "V1PodTemplateSpec":
        try:
            _check_core(_as_pod(value))
        except Exception as error:  # noqa: BLE001 - the library has several kinds
            yield str(error)
    elif kind in PRIMITIVES:
        if type(value) is not PRIMITIVES[kind]:
            yield f"{value!r} is no {kind}"
    else:
        assert kind == "V1ObjectMeta", kind


def _typos(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all keys that a schema names."""
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _typos(each, (*path, i))
    elif isinstance(value, dict):
        for key, each in value.items():
            if not (path and path[-1] in FREE):
                yield (*path, key)
            if key not in FREE or key == "pytorchReplicaSpecs":
                yield from _typos(each, (*path, key))


def _misspelt(value: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    result = copy.deepcopy(value)
    inner: Any = result
    for key in path[:-1]:
        inner = inner[key]
    inner[f"{path[-1]}x"] = inner.pop(path[-1])
    return result


def _check_typos(training: dict[str, Any], is_fit: Callable[[dict[str, Any]], bool], at_least: int) -> None:
    """The object fits, and with any key of its misspelt it does not."""
    assert is_fit(training)
    paths = list(_typos(training["spec"], ("spec",)))
    assert [path for path in paths if is_fit(_misspelt(training, path))] == []
    assert len(paths) > at_least


@pytest.mark.parametrize("nodes", [1, 2])
def test_pytorch_job_fits(make_training, models, nodes):
    config, training = _objects(make_training, "pytorchjob", nodes)
    _check_core(config)
    assert list(_faults(models, training, "KubeflowOrgV1PyTorchJob")) == []


def test_every_misspelt_key_of_a_pytorch_job_is_found(make_training, models, monkeypatch):
    utils = pytest.importorskip("kubernetes_validate.utils", reason="pip install kubernetes-validate")
    monkeypatch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))  # or they are read each time
    _, training = _objects(make_training, "pytorchjob")
    _check_typos(training, lambda each: not any(_faults(models, each, "KubeflowOrgV1PyTorchJob")), 60)


@pytest.fixture
def train_job(monkeypatch) -> Any:
    """The class of kubeflow-trainer-api."""
    monkeypatch.syspath_prepend(str(_wheel("kubeflow_trainer_api")))
    return pytest.importorskip("kubeflow_trainer_api.models.trainer_v1alpha1_train_job").TrainerV1alpha1TrainJob


@pytest.mark.parametrize("nodes", [1, 2])
def test_train_job_fits(make_training, train_job, nodes):
    config, training = _objects(make_training, "trainjob", nodes)
    _check_core(config)
    assert train_job.from_dict(training).to_dict() == training


def test_every_misspelt_key_of_a_train_job_is_found(make_training, train_job):
    """What its classes do not know, they drop."""

    def is_fit(each: dict[str, Any]) -> bool:
        try:
            return bool(train_job.from_dict(each).to_dict() == each)
        except (ValueError, KeyError):
            return False

    _, training = _objects(make_training, "trainjob")
    _check_typos(training, is_fit, 60)


def test_pods_of_a_train_job_fit(make_training):
    """What the operator makes of the runtime's container, the trainer and the patches, put together by hand."""
    _, training = _objects(make_training, "trainjob")
    trainer = training["spec"]["trainer"]
    (job,) = training["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = copy.deepcopy(job["template"]["spec"]["template"])
    (container,) = template["spec"]["containers"]
    container |= {key: trainer[key] for key in ("image", "command", "env")} | {"resources": trainer["resourcesPerNode"]}
    _check_core(_as_pod(template))
