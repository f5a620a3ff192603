"""The container image and the job for KubeRay, checked without building or running them."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evaluators.app.command import compose_config
from search.run.config import RunConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CRD = "IDEATREE_KUBERAY_CRD"
"""The variable that names KubeRay's file ray.io_rayjobs.yaml, which is not in this repository."""
JOB_FIELDS = {
    *("entrypoint", "submissionMode", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit"),
    "rayClusterSpec",
}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
CONTAINER_FIELDS = {"name", "image", "env", "envFrom", "resources", "volumeMounts"}


@pytest.fixture
def job() -> Any:
    return yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())


def instructions() -> list[tuple[str, str]]:
    """The image's instructions and their arguments."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (each.partition(" ") for each in lines) if name]


def test_the_image_is_made_from_a_pinned_base_by_the_readmes_command() -> None:
    found = instructions()
    assert [rest for name, rest in found if name == "FROM"] == [
        "docker.io/library/python:3.12.8-slim-bookworm"
    ]
    assert {name for name, _ in found} <= {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "CMD"}
    assert any(name == "RUN" and rest.startswith("make install ") for name, rest in found)
    assert [rest for name, rest in found if name == "USER"][-1] == "ray"


def test_the_image_has_the_packages_and_no_secrets() -> None:
    copied = {each for name, rest in instructions() if name == "COPY" for each in rest.split()[:-1]}
    assert all((ROOT / each).exists() for each in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]} <= copied
    assert "." not in copied, "a working tree may hold keys and run folders"
    text = (DEPLOY / "Containerfile").read_text()
    assert not re.search(r"(?i)api_key|token|secret|password", text)


def test_the_job_has_the_fields_that_kuberay_documents(job: Any) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) == JOB_FIELDS
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    (workers,) = cluster["workerGroupSpecs"]
    assert set(workers) == GROUP_FIELDS and set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(each, str) for each in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert set(container) <= CONTAINER_FIELDS
        assert {each["name"] for each in container["volumeMounts"]} <= {
            each["name"] for each in pod["volumes"]
        }
        assert container["resources"]["limits"] == container["resources"]["requests"]


@pytest.mark.slow
def test_the_job_uses_one_image_with_the_tested_ray_and_calls_a_real_command(job: Any) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert len({each["template"]["spec"]["containers"][0]["image"] for each in groups}) == 1
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    program, command, *overrides = job["spec"]["entrypoint"].split()
    assert (program, command) == ("ideatree", "run")
    config = compose_config(RunConfig, overrides, resolve=False)
    assert config.ray.address == "auto" and config.out == "/runs"


@pytest.mark.slow
@pytest.mark.skipif(CRD not in os.environ, reason=f"set {CRD} to KubeRay's ray.io_rayjobs.yaml")
def test_the_job_validates_against_kuberays_schema(job: Any) -> None:
    """Strictly: the API server would drop a field that the schema does not have."""
    resource = yaml.safe_load(Path(os.environ[CRD]).read_text())
    versions = {each["name"]: each["schema"]["openAPIV3Schema"] for each in resource["spec"]["versions"]}
    schema = strict(versions["v1"])
    schema["properties"]["metadata"] = {"type": "object"}  # the API server's own schema
    jsonschema.Draft202012Validator(schema).validate(job)
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.Draft202012Validator(schema).validate(job)


def strict(schema: Any) -> Any:
    """The schema, which refuses unknown fields."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(each) for name, each in schema.items()}
    is_open = found.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in found
    return (
        found
        if is_open or not isinstance(found.get("properties"), dict)
        else found | {"additionalProperties": False}
    )
