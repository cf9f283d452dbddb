"""A runbook for every alert, with commands that work when they are pasted."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from incident_tale import Tale
from promtool import needs_promtool
from readme_shell import needs, shell
from sidecar_process import sidecar

from headway.cli import COMMANDS
from headway_alerts import catalogue, promql
from headway_alerts.config import Config
from headway_alerts.model import Recording
from headway_exporter.schema import METRICS
from headway_exporter.status import status

FOLDER = Path(__file__).parents[2] / "alerts" / "runbooks"
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
ALERTS = {alert.name: alert for alert in catalogue.alerts(Config())}
RUNBOOKS = {path.stem: path.read_text() for path in FOLDER.glob("Headway*.md")}
SET_UP = (FOLDER / "README.md").read_text()
PAGES = {**RUNBOOKS, "README": SET_UP}
RECORDED = {
    rule.record: rule.labels
    for group in catalogue.groups(Config())
    for rule in group.rules
    if isinstance(rule, Recording)
}
DESIGNED_COMMANDS = {"status", "postmortem", "incidents", "advise", "doctor"}
"""Part of the design; they may be newer than the runbooks."""


def scripts(text: str) -> str:
    """All that can be pasted."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))


def queries(text: str) -> list[str]:
    """PromQL that is given to `q`."""
    found = re.findall(r"\bq '([^']+)'", scripts(text))
    return [query for query in found if re.search(r"\bALERTS\{|\bup\{", query) is None]


def test_every_alert_has_one_and_nothing_else_does() -> None:
    """Its link must lead somewhere."""
    assert set(RUNBOOKS) == set(ALERTS)


@pytest.mark.parametrize("name", sorted(RUNBOOKS))
def test_all_sections_are_there_and_no_stub(name: str) -> None:
    """In the same order everywhere, so that one finds them half asleep; each with something to say."""
    text = RUNBOOKS[name]
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        assert len(section.split()) >= 15, section


@pytest.mark.parametrize("name", sorted(RUNBOOKS))
def test_diagnosis_has_commands_and_repeats_no_message(name: str) -> None:
    """Who reads it has read the alert."""
    text = RUNBOOKS[name]
    diagnosis = text.partition("## Diagnosis")[2].partition("## Mitigation")[0]
    assert len(queries(diagnosis)) >= 2
    said = [sentence for sentence in re.split(r"(?<=[.;]) ", ALERTS[name].description) if "{{" not in sentence]
    flat = " ".join(text.split())
    assert [sentence for sentence in said if len(sentence) > 25 and sentence in flat] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_metrics_and_labels_in_commands_exist(name: str) -> None:
    """An empty answer to a misspelt query would be taken for good news."""
    for query in queries(PAGES[name]):
        assert "RUN" in query, query
        promql.finished(name, query.replace("RUN", 'run="demo"'), "", RECORDED)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_first_count_is_seen(name: str) -> None:
    """A counter that appears with its first count has not risen since, for `increase`: the one restart of the night would be missing."""
    for query in queries(PAGES[name]):
        for selected, metric, window in re.findall(r"increase\(((headway_\w+_total)\{[^}]*\})\[(\w+)\]", query):
            if "none yet" in METRICS[metric].absent:
                assert f"{selected} unless {selected} offset {window} or increase(" in query, query


@needs_promtool
def test_queries_parse(tmp_path: Path) -> None:
    """As Prometheus sees them, each page as a group of rules."""
    groups = [
        {
            "name": name,
            "rules": [
                {"record": f"page:{name}:query{at}", "expr": query.replace("RUN", 'run="demo"')}
                for at, query in enumerate(queries(text))
            ],
        }
        for name, text in PAGES.items()
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(
        ["promtool", "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(PAGES))
def test_headway_commands_exist(name: str) -> None:
    """No sub-command is made up."""
    named = set(re.findall(r"\bheadway ([a-z]+)", scripts(PAGES[name])))
    assert named <= set(COMMANDS) | DESIGNED_COMMANDS


def test_fields_of_the_status_page_exist() -> None:
    """What `status` is asked for is there."""
    document = status(Tale().tell("kill 1, launcher 8, steps 9-12, commit 12").pod, {})
    asked = [found for text in PAGES.values() for found in re.findall(r"status '([^']+)'", text)]
    assert asked
    for path in asked:
        top = re.match(r"\.(\w+)", path)
        assert top is not None
        assert top.group(1) in document, path
        inner = document[top.group(1)]
        inner = inner[-1] if isinstance(inner, list) else inner
        names = re.findall(r"\{([^}]*)\}", path)
        fields = [one.strip() for found in names for one in found.split(",")] + re.findall(r"\]\.(\w+)", path)
        assert [one for one in fields if one not in inner] == [], path


def test_scripts_are_valid_shell(tmp_path: Path) -> None:
    """A quote that is missing would swallow the next command."""
    for name, text in PAGES.items():
        for script in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            (tmp_path / "script").write_text(script)
            done = subprocess.run(["bash", "-n", "script"], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (name, done.stderr)


def test_the_set_up_puts_the_run_into_a_query(tmp_path: Path) -> None:
    """`q` is tried with a stand-in that shows what promtool would get."""
    begin = re.search(r"```sh\n(.*?)```", SET_UP, re.DOTALL)
    assert begin is not None
    fake = tmp_path / "promtool"
    fake.write_text('#!/bin/sh\necho "$4"\n')
    fake.chmod(0o755)
    script = begin.group(1) + "\nPATH=$PWD:$PATH\nq 'max by (layer) (headway_restarts_total{RUN,layer=\"launcher\"})'\n"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == 'max by (layer) (headway_restarts_total{run="my-run",layer="launcher"})'


def in_the_pod(folder: Path, script: str, **environ: str) -> str:
    """What the set-up and then `script` print, where each container is this machine: the client does what stands behind its `--`."""
    (folder / "bin").mkdir(exist_ok=True)
    for client in ("kubectl", "srun"):
        fake = folder / "bin" / client
        skip = 'while [ "$1" != -- ]; do shift; done; shift' if client == "kubectl" else "shift 7"
        fake.write_text(f'#!/bin/sh\n{skip}\nexec "$@"\n')
        fake.chmod(0o755)
    begin, elsewhere = re.findall(r"```sh\n(.*?)```", SET_UP, re.DOTALL)[:2]
    done = shell([begin + (elsewhere if "JOB" in script else ""), script], folder, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs("jq")
@pytest.mark.parametrize("where", ["", "JOB=1; export HEADWAY_STATUS_URL=$URL; "])
def test_the_set_up_asks_the_sidecar(tmp_path: Path, where: str) -> None:
    """By its own command, which knows certificate and password of a secured port: in a pod, and on a node of Slurm."""
    with sidecar(tmp_path / "journals") as exporter:
        url = f"http://127.0.0.1:{exporter.address[1]}"
        environ = {"URL": url} if where else {"HEADWAY_STATUS_URL": url}
        assert in_the_pod(tmp_path, f"{where}status .run", **environ) == '"testrun"\n'


@pytest.mark.parametrize("where", ["", "JOB=1; "])
def test_processes_are_listed_without_any_tool(tmp_path: Path, where: str) -> None:
    """Slim images have neither `ps` nor `pgrep`: memory in kB, PID, rank and command line of each process, the largest first."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "LOCAL_RANK": "7"}) as process:
        lines = [line.split() for line in in_the_pod(tmp_path, f"{where}procs").splitlines()]
        process.kill()
    assert [str(process.pid), "LOCAL_RANK=7", "sleep", "60"] in [line[1:] for line in lines]
    memory = [int(line[0]) for line in lines if len(line) > 2]
    assert memory == sorted(memory, reverse=True)


def test_no_script_finds_itself() -> None:
    """A pattern for `pgrep -f` that fits the command line it stands in names a shell that is gone, and `-o` PID 1: the launcher."""
    for name, text in PAGES.items():
        for pattern in re.findall(r"pgrep -f[a-z]* \"?([^\s\")]+)", scripts(text)):
            assert not re.search(pattern, pattern), name
        assert "pgrep -of" not in text
        assert "-- kill" not in text, f"{name}: slim images have it only inside of sh"
