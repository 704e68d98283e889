"""Manifests as text. That they fit the schemas of Kubernetes and Kubeflow is for the tests marked `kubernetes`."""

from __future__ import annotations

import re

import pytest
import yaml

from dataprep.errors import SpecError
from dataprep.train.launchers import kubernetes

NEEDED = {"image": "registry.example/megatron:1", "claim": "fsx-claim"}
WHOLE = {
    **NEEDED,
    "namespace": "team",
    "efa_per_node": 32,
    "instance_type": "p5.48xlarge",
    "cpu_per_node": "90",
    "memory_per_node": "900Gi",
    "token_secret": "hub",
    "environment": {"OWN": "$(A) $$"},
    "max_restarts": 3,
}


def _render(make_training, kind: str = "pytorchjob", nodes: int = 2, folder: str = "/fsx/it's", **launch):
    changes = {"parallel": {"nodes": nodes, "gpus_per_node": 8}, "launch": {**NEEDED, "kind": kind, **launch}}
    job, program = make_training(folder, **changes)
    text = kubernetes.render(job, program)
    config, training = yaml.safe_load_all(text)
    return text, config, training


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_texts_are_those_that_were_read_through(make_training, golden, kind):
    golden(f"kubernetes-{kind}.yaml", _render(make_training, kind, **WHOLE)[0])


def _container(training: dict) -> dict:
    if training["kind"] == "TrainJob":
        return training["spec"]["trainer"]
    return training["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]


def _mounts(training: dict) -> dict[str, str | None]:
    if training["kind"] == "TrainJob":
        (job,) = training["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    else:
        container = _container(training)
    return {each["mountPath"]: each.get("subPath") for each in container["volumeMounts"]}


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_files_are_where_the_arguments_name_them(make_training, kind):
    _, config, training = _render(make_training, kind)
    assert config["data"]["config.json"] == '{"steps": 10}\n'
    assert _mounts(training)["/fsx/it's/runs/one/config.json"] == "config.json"
    assert "--config-file '/fsx/it'\"'\"'s/runs/one/config.json'\n" in config["data"]["train.sh"]
    assert _container(training)["command"] == ["bash", "/etc/dataprep/train.sh"]


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_one_pod_meets_nobody(make_training, kind):
    _, config, training = _render(make_training, kind, nodes=1)
    assert "--standalone" in config["data"]["train.sh"]
    assert "PET_" not in config["data"]["train.sh"]
    assert "elasticPolicy" not in training["spec"]


def test_workers_meet_at_the_first_one_and_at_no_etcd(make_training):
    text, config, training = _render(make_training, max_restarts=3)
    (port,) = _container(training)["ports"]
    endpoint = f"{training['metadata']['name']}-worker-0:{port['containerPort']}"
    assert f"--rdzv-backend=c10d \\\n  --rdzv-endpoint={endpoint} \\\n" in config["data"]["train.sh"]
    assert port["name"] == "pytorchjob-port"
    assert list(training["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert training["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    assert "etcd" not in text


def test_nodes_of_a_train_job_meet_as_its_operator_says(make_training):
    _, config, training = _render(make_training, "trainjob")
    words = '--node-rank="$PET_NODE_RANK" \\\n  --master-addr="$PET_MASTER_ADDR" \\\n  --master-port="$PET_MASTER_PORT"'
    assert words in config["data"]["train.sh"]
    assert training["spec"]["trainer"]["numNodes"] == 2
    names = {each["name"] for each in training["spec"]["trainer"]["env"]}
    assert not {name for name in names if name.startswith("PET_")}, "the operator refuses them"


def test_its_patch_has_an_owner_that_the_webhook_takes(make_training):
    """By `IsDomainPrefixedPath` of k8s.io/apimachinery: a domain, a slash, a path."""
    _, _, training = _render(make_training, "trainjob")
    (patch,) = training["spec"]["runtimePatches"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/_.~-]+", patch["manager"])


def test_values_arrive_as_they_are(make_training):
    value = "a $(HOME) $$ $x"
    _, _, training = _render(make_training, environment={"OWN": value})
    (found,) = (each["value"] for each in _container(training)["env"] if each["name"] == "OWN")
    assert re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[0] == "$$" else "x", found) == value


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_accelerators(make_training, vendor):
    job, program = make_training("/fsx", launch=NEEDED, program={"vendor": vendor})
    resources = _container(kubernetes.objects(job, program)[1])["resources"]
    assert resources["limits"] == resources["requests"] == {f"{vendor}.com/gpu": "2"}


def test_adapters_of_amazon(make_training):
    _, _, training = _render(make_training, efa_per_node=16)
    assert _container(training)["resources"]["limits"]["vpc.amazonaws.com/efa"] == "16"
    assert {"name": "FI_PROVIDER", "value": "efa"} in _container(training)["env"]


def test_a_token_is_by_reference(make_training):
    _, _, training = _render(make_training, token_secret="hub")
    reference = {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert {"name": "HF_TOKEN", "valueFrom": reference} in _container(training)["env"]


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"image": ""}, "needs an image: --set launch.image"),
        ({"claim": None}, "needs a PersistentVolumeClaim: --set launch.claim"),
        ({"mount_path": "/data"}, "/fsx/it's/checkpoints is not below /data, where pods see the claim fsx-claim"),
        ({"mounts": ("/fsx",)}, "launch.mounts: pods see the claim alone"),
        ({"environment": {"a b": "1"}}, "is no name of an environment variable"),
        ({"folder": "/fsx/a:b"}, "/fsx/a:b/runs/one: Kubernetes mounts at no path with a colon"),
    ],
)
def test_what_pods_cannot_do(make_training, launch, message):
    with pytest.raises(SpecError, match=message):
        _render(make_training, **launch)


def test_a_tokenizer_that_pods_do_not_see(make_training):
    job, program = make_training("/fsx", launch=NEEDED)
    job = job.model_copy(update={"tokenizer_path": "/home/me/gpt2"})
    with pytest.raises(SpecError, match="/home/me/gpt2 is not below /fsx"):
        kubernetes.render(job, program)


def test_files_that_are_too_large(make_training):
    job, program = make_training("/fsx", launch=NEEDED, program={"files": {"config.json": "\u00e4" * (1 << 19)}})
    with pytest.raises(SpecError, match="a ConfigMap holds 1048576: blend fewer prefixes"):
        kubernetes.render(job, program)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Llama3.1_8B", "llama3-1-8b"), ("8b", "train-8b"), ("a" * 99, "a" * 48), ("-x-", "x")],
)
def test_names_as_kubernetes_takes_them(make_training, name, expected):
    job, _ = make_training("/fsx")
    assert kubernetes.name_of(job.model_copy(update={"name": name})) == expected


def test_hundreds_of_arguments_are_no_matter(make_training):
    """A TrainJob's own list of arguments ends at 128 words."""
    job, program = make_training("/fsx", tuple(map(str, range(500))), launch={**NEEDED, "kind": "trainjob"})
    _, training = kubernetes.objects(job, program)
    assert len(training["spec"]["trainer"]["command"]) == 2
