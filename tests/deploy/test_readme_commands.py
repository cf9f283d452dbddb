"""The README's sections on deployment: each command names what exists and is understood by the program that it starts."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import manifests
import yaml
from manifests import CHART, EXPORTER, ROOT, TRAINER

from headway_trainer.arguments import parse_args

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_README: Final = (ROOT / "README.md").read_text()
KUBERNETES: Final = _README.partition("## Deployment on Kubernetes\n")[2].partition("\n## ")[0]
SLURM: Final = _README.partition("## Slurm\n")[2].partition("\n## ")[0]


def commands(section: str, program: str) -> list[list[str]]:
    """The words of each command line that begins with this program, comments left out."""
    lines = re.findall(r"^\$ (.+)$", section, re.MULTILINE)
    words = [shlex.split(line, comments=True) for line in lines]
    found = [line for line in words if line[0] == program]
    assert found, program
    return found


def after(words: list[str], option: str) -> list[str]:
    """The values of an option."""
    return [value for name, value in pairwise(words) if name == option]


def test_what_is_applied_can_be_applied() -> None:
    """Every folder is a kustomization that builds; the job whose port is forwarded is one of them."""
    folders = [folder for _, folder in applied()]
    assert len(folders) == 6
    objects = [one for folder in folders for one in manifests.kustomized(folder)]
    (forward,) = [words for words in commands(KUBERNETES, "kubectl") if "port-forward" in words]
    job = manifests.only(objects, "Job")
    assert f"job/{job['metadata']['name']}" in forward
    assert forward[-1] == str(manifests.container(job, "headway")["ports"][0]["containerPort"])


def applied() -> list[tuple[str, Path]]:
    """Namespaces and what is put into them, one after the other."""
    lines = [words for words in commands(KUBERNETES, "kubectl") if "-k" in words]
    return [(after(words, "--namespace")[0], ROOT / after(words, "-k")[0]) for words in lines]


def test_what_is_applied_does_not_undo_what_was_applied_before() -> None:
    """Who follows the README from top to bottom changes no object that he has made: of a claim Kubernetes would refuse that."""
    made: dict[tuple[str, str, str], manifests.Object] = {}
    for namespace, folder in applied():
        for one in manifests.kustomized(folder):
            key = (namespace, one["kind"], one["metadata"]["name"])
            assert made.setdefault(key, one) == one, key


def test_images_are_built_from_what_there_is() -> None:
    """By the names that the manifests use."""
    built = {after(words, "--tag")[0]: after(words, "--file")[0] for words in commands(KUBERNETES, "docker")}
    assert built == {manifests.image(f"headway-{name}"): f"{name}/Containerfile" for name in ("exporter", "trainer")}
    for file in built.values():
        assert (ROOT / file).is_file()


def test_every_overlay_is_in_the_table() -> None:
    """And every component is named where it is used."""
    for folder in ("overlays", "components"):
        for path in (TRAINER / folder).iterdir():
            assert f"`{folder}/{path.name}`" in KUBERNETES or f"`{path.name}`" in KUBERNETES, path


def test_values_that_are_set_are_known() -> None:
    """Helm takes each command's values, and they do something."""
    usual = manifests.charted({})
    for words in commands(KUBERNETES, "helm"):
        assert ROOT / words[3] == CHART
        values: dict[str, Any] = {}
        for path in after(words, "--values"):
            values |= yaml.safe_load((ROOT / path).read_text())
        for text in after(words, "--set"):
            place, _, value = text.partition("=")
            *outer, name = place.split(".")
            inner = values
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[name] = yaml.safe_load(value)
        assert manifests.charted(values) != usual


def beside_headway(folder: Path, word: str) -> Path:
    """The kustomization in the README that has this word, with this repository as its neighbour."""
    (text,) = (one for one in re.findall(r"```yaml\n(.*?)```", KUBERNETES, re.DOTALL) if word in one)
    neighbour, own = folder / "headway", folder / "own"
    (neighbour / "exporter").mkdir(parents=True)
    (neighbour / "exporter" / "kubernetes").symlink_to(EXPORTER)
    own.mkdir()
    (own / "kustomization.yaml").write_text(text)
    return own


def test_the_releases_label_reaches_what_the_operator_reads(tmp_path: Path) -> None:
    """Without it on the rules too, sidecars would be scraped and no alert would ever fire, in silence; Helm's command likewise."""
    made = {one["kind"]: one for one in manifests.kustomized(beside_headway(tmp_path, "pairs:"))}
    for kind in ("PodMonitor", "PrometheusRule"):
        assert made[kind]["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert made["PodMonitor"]["spec"] == manifests.only(manifests.kustomized(EXPORTER), "PodMonitor")["spec"]
    for words in commands(KUBERNETES, "helm"):
        labelled = [text.partition(".")[0] for text in after(words, "--set") if ".labels.release=" in text]
        assert labelled in ([], ["podMonitor", "prometheusRule"])


def test_the_kustomization_of_ones_own_works(tmp_path: Path) -> None:
    """As it stands there."""
    own = beside_headway(tmp_path, "components:\n")
    job = manifests.job_in(TRAINER / "base")
    for volumes in ("initContainers", "volumes"):
        manifests.pod_of(job)["spec"].pop(volumes)
    for mount in ("volumeMounts", "env"):
        manifests.pod_of(job)["spec"]["containers"][0].pop(mount)
    (own / "job.yaml").write_text(yaml.safe_dump(job))
    (made,) = manifests.kustomized(own)
    manifests.check(made, manifests.OLDEST)
    sidecar = manifests.container(made, "headway")
    assert sidecar["image"] == f"registry.example/{manifests.image('headway-exporter')}"
    variables = manifests.environment(sidecar, made)
    assert (variables["HEADWAY_GPUS"], variables["HEADWAY_KUBERNETES"]) == ("on", "auto")


def test_ones_own_group_and_grace_period_win(tmp_path: Path) -> None:
    """A component's patch replaces what a job says of these; who needs his own adds this to the kustomization above."""
    own = beside_headway(tmp_path, "components:\n")
    job = manifests.job_in(TRAINER / "base")
    spec = manifests.pod_of(job)["spec"]
    for name in ("initContainers", "volumes"):
        spec.pop(name)
    spec["securityContext"]["fsGroup"], spec["terminationGracePeriodSeconds"] = 2000, 600
    (own / "job.yaml").write_text(yaml.safe_dump(job))
    spec = manifests.pod_of(manifests.job_in(own))["spec"]
    assert (spec["securityContext"]["fsGroup"], spec["terminationGracePeriodSeconds"]) == (65532, 120)
    (text,) = (one for one in re.findall(r"```yaml\n(.*?)```", KUBERNETES, re.DOTALL) if one.startswith("patches:"))
    fresh = tmp_path / "again"
    shutil.copytree(own, fresh)
    with (fresh / "kustomization.yaml").open("a") as file:
        file.write(text)
    spec = manifests.pod_of(manifests.job_in(fresh))["spec"]
    assert (spec["securityContext"]["fsGroup"], spec["terminationGracePeriodSeconds"]) == (2000, 600)


def test_the_memory_that_it_names_is_the_journals() -> None:
    """What must be added to the trainer's limit."""
    volumes = manifests.pod_of(manifests.job_in(TRAINER / "base"))["spec"]["volumes"]
    (size,) = [one["emptyDir"]["sizeLimit"] for one in volumes if one["name"] == "headway-journal"]
    assert f"have {size.removesuffix('Mi')} MiB for it" in KUBERNETES


def test_what_sbatch_is_given_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script exists, and the words after it are the trainer's options; likewise in the script's own example."""
    script = ROOT / "trainer" / "slurm" / "headway.sbatch"
    example = re.findall(r"^#   (sbatch .+)$", script.read_text(), re.MULTILINE)
    monkeypatch.chdir(ROOT)
    for words in (*commands(SLURM, "sbatch"), *(shlex.split(line) for line in example)):
        at = next(number for number, word in enumerate(words) if word.endswith(".sbatch"))
        assert ROOT / words[at] == script
        config = parse_args(words[at + 1 :])
        assert (config.model.preset, config.steps, config.checkpoint.every) == ("llama3-8b", 2000, 100)
