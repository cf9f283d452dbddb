"""`headway doctor` on installed versions, variables and launchers' options; and how it says what it found."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doctored import Found, doctor, run_doctor
from journal_folder import RUN, finish, launcher, trainer

from headway.doctor import checks_timeouts
from headway.doctor.checks_environment import KNOWN
from headway.doctor.checks_versions import Trainer, all_checks
from headway.doctor.findings import CHECKS, Finding, Role
from headway.doctor.gather import gather
from headway.doctor.show import lines

CODE = Path(__file__).parents[2] / "instrumentation"
SIDECAR = {
    "bcrypt": "4", "jinja2": "3.1", "nvidia-ml-py": "13.6", "opentelemetry-exporter-otlp-proto-http": "1.39",
    "opentelemetry-sdk": "1.39", "prometheus-client": "0.26", "psutil": "5.9", "pyyaml": "6", "requests": "2.32",
}  # fmt: skip


def installed(folder: Path, *options: str, **versions: str) -> Found:
    """What the doctor finds where these are installed and nothing else: real metadata in a site folder, and no other one (`-I -S`)."""
    site = folder / "site"
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    start = f"import sys; sys.path[:0] = [{str(CODE)!r}, {str(site)!r}]; from headway.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ("doctor", "--format", "json", "--dir", str(folder), "--listen", "127.0.0.1:1", *options)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start, *words], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return Found(done.returncode, json.loads(done.stdout)["findings"])


def test_the_recorder_alone(tmp_path: Path) -> None:
    """With nothing but the standard library nothing fails, and what was not checked says why."""
    found = installed(tmp_path)
    assert (found.code, found.status("fail")) == (0, set())
    assert found.status("skip") >= {"extra", "torch", "nvrx", "no-gpu", "heartbeats", "nccl", "nvml-bindings"}
    assert all(one["what"] for one in found.findings)
    assert installed(tmp_path / "b", "--role", "sidecar").status("fail") == {"extra"}


def test_versions_are_read_without_importing(tmp_path: Path) -> None:
    """From the metadata of what is installed: NVRx 0.7 without what it needs, and an old pynvml."""
    found = installed(tmp_path, nvidia_resiliency_ext="0.7.0", torch="2.13.0", fastapi="0.1", pynvml="11.5.3")
    assert found.code == 1
    assert found.one("nvrx")[1:] == ("NVRx 0.7.0 needs uvicorn and does not say so", "pip install uvicorn")
    assert found.one("torch")[1] == "torch 2.13.0"
    assert found.one("nvml-bindings")[0] == "warn"


@pytest.mark.parametrize(
    ("versions", "check", "status", "words"),
    [
        ({"nvidia-resiliency-ext": "0.4.1", "numpy": "2"}, "nvrx", "ok", "0.4.1"),
        ({"nvidia-resiliency-ext": "0.4.1"}, "nvrx", "fail", "numpy"),
        ({"nvidia-resiliency-ext": "0.6.0"}, "nvrx", "ok", "0.6.0"),
        ({"nvidia-resiliency-ext": "0.7.0", "fastapi": "1", "uvicorn": "1"}, "nvrx", "ok", "0.7.0"),
        ({"nvidia-resiliency-ext": "0.3.0"}, "nvrx", "warn", "not tested"),
        ({"nvidia-resiliency-ext": "0.8.0rc1"}, "nvrx", "warn", "not tested"),
        ({"nvidia-resiliency-ext": "0.6.0"}, "no-gpu", "warn", "no GPU"),
        ({"torch": "2.13.0+cpu"}, "torch", "ok", "2.13.0+cpu"),
        ({"pynvml": "13.0.1", "nvidia-ml-py": "13.6"}, "nvml-bindings", "ok", "beside it"),
        ({"pynvml": "11.5.0", "nvidia-ml-py": "13.6"}, "nvml-bindings", "warn", "hides"),
        (SIDECAR, "extra", "ok", "installed"),
        ({**SIDECAR, "psutil": None}, "extra", "fail", "psutil"),
        ({"prometheus-client": None}, "extra", "skip", "no sidecar"),
    ],
)
def test_each_version_and_its_traps(versions: dict[str, str | None], check: str, status: str, words: str) -> None:
    """What each version is known for."""
    found = _one(check, versions=versions)
    assert (found.status, words in found.what) == (status, True)


def test_a_build_for_cpus_beside_gpus() -> None:
    """Torch without CUDA where the driver shows GPUs; and where there are some, nothing is said of CPUs."""
    versions = {"torch": "2.13.0+cpu", "nvidia-resiliency-ext": "0.6.0"}
    assert _one("torch", versions=versions, gpus=8).status == "fail"
    assert _one("no-gpu", versions=versions, gpus=8).status == "ok"
    assert _one("no-gpu", versions=versions, gpus=None).status == "skip"


def test_a_python_without_wheels() -> None:
    """NVRx has none for 3.13; who has built it has it."""
    assert _one("python", python=(3, 13)).status == "warn"
    assert _one("python", python=(3, 13), versions={"nvidia-resiliency-ext": "0.7.0"}).status == "ok"
    assert _one("python", python=(3, 12)).status == "ok"


@pytest.mark.parametrize(
    ("version", "command", "status"),
    [
        ("0.6.0", None, "warn"),
        ("0.7.0", ["ft_launcher", "train.py"], "warn"),
        ("0.7.0", ["ft_launcher", "--ft-rank-heartbeat-timeout", "900", "train.py"], "ok"),
        ("0.6.0", ["ft_launcher", "--ft-rank-heartbeat-timeout=900"], "ok"),
        ("0.6.0", ["ft_launcher", "--ft-cfg-path=x.yaml"], "skip"),
        ("0.4.1", ["ft_launcher", "--ft-param-rank_heartbeat_timeout", "900"], "ok"),
        ("0.4.1", None, "ok"),
        ("0.4.1", ["/usr/bin/torchrun", "train.py"], "warn"),
        ("0.4.1", ["python", "-m", "torch.distributed.run", "train.py"], "warn"),
    ],
)
def test_heartbeats_that_are_off(version: str, command: list[str] | None, status: str) -> None:
    """From 0.6 on nobody notices a hang unless the launcher is told a time-out."""
    found = _one("heartbeats", versions={"nvidia-resiliency-ext": version}, command=command)
    assert found.status == status
    assert ("--ft-rank-heartbeat-timeout" in found.do) == (status == "warn")


def test_the_launcher_is_the_one_named_or_the_one_on_record(tmp_path: Path) -> None:
    """`headway run` writes down how training was started; what stands after `--` is what is asked about."""
    (tmp_path / RUN).mkdir()
    command = ["ft_launcher", "--ft-rank-heartbeat-timeout=900", "train.py"]
    launcher(tmp_path)("launcher_started", pid=1, command=command, attempt=0)
    told = installed(tmp_path, "--run", RUN, nvidia_resiliency_ext="0.6.0")
    assert told.one("heartbeats")[0] == "ok"
    assert installed(tmp_path, "--run", RUN, "--", "ft_launcher", "train.py").one("heartbeats")[0] == "warn"
    assert installed(tmp_path, "--run", "other", "--", *command).one("heartbeats")[0] == "ok"


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, "skip"),
        ({"soft_timeout_seconds": 300.0}, "skip"),
        ({"soft_timeout_seconds": 300.0, "hard_timeout_seconds": 600.0, "heartbeat_rank_seconds": 900.0}, "ok"),
        ({"soft_timeout_seconds": 300.0, "hard_timeout_seconds": 300.0}, "warn"),
        ({"hard_timeout_seconds": 600.0, "heartbeat_rank_seconds": 60.0}, "warn"),
        ({"hard_timeout_seconds": 600.0, "barrier_timeout_seconds": 600.0}, "warn"),
        ({"hard_timeout_seconds": 600.0, "barrier_timeout_seconds": 900.0, "heartbeat_rank_seconds": 700.0}, "ok"),
        ({"barrier_timeout_seconds": 900.0, "completion_timeout_seconds": 120.0}, "ok"),
        ({"soft_timeout_seconds": True, "hard_timeout_seconds": "x"}, "skip"),
    ],
)
def test_the_order_of_time_outs(settings: dict[str, Any], status: str) -> None:
    """The nearer layer must have its turn first. Where they are not known, it is said how to tell them."""
    found = _one("time-outs", settings=settings)
    assert (found.status, "settings={" in found.do) == (status, status == "skip")


@pytest.mark.parametrize(
    ("silence", "short"),
    [
        (0.0, []),
        (70.0, []),
        (90.0, ["soft 120 s", "completion 130 s"]),
        (300.0, ["soft", "hard", "barrier", "completion"]),
    ],
)
def test_time_outs_outlast_ranks_that_are_well(silence: float, short: list[str]) -> None:
    """Each of them, the barrier's and that of the end included, is compared with the longest silence, and named with it."""
    settings = {
        f"{name}_timeout_seconds": seconds
        for name, seconds in (("soft", 120.0), ("hard", 200.0), ("barrier", 400.0), ("completion", 130.0))
    }
    found = checks_timeouts.timeouts(settings, None, {"init": 1.0, "checkpoint_load": silence})
    assert found.status == ("warn" if short else "ok")
    assert all(name in found.what for name in short)
    assert not short or f"{silence:g} s (checkpoint_load)" in found.what
    assert bool(found.do) is bool(short)


def test_the_launchers_time_out_is_the_heartbeats(tmp_path: Path) -> None:
    """Where the trainer does not tell it, the launcher's option counts; silences come from the journals themselves."""
    acts = ("set=soft_timeout_seconds:300", "set=hard_timeout_seconds:600", "enter=a", "steps=1-3", "gap=450", "finish")
    finish(trainer(tmp_path, 0, *acts, ranks=1))
    for heartbeat, words in ((500, "heartbeat (500 s) is not above hard (600 s)"), (900, "soft 300 s, hard 600 s")):
        command = ["ft_launcher", f"--ft-rank-heartbeat-timeout={heartbeat}", "train.py"]
        launcher(tmp_path)("launcher_started", pid=1, command=command, attempt=0)
        status, what, _ = doctor("--dir", str(tmp_path), "--run", RUN).one("time-outs")
        assert (status, words in what, "450 s (eval)" in what) == ("warn", True, True)


def test_nothing_of_the_trainer_is_checked_for_the_sidecar() -> None:
    """Its container has neither torch nor NVRx, and that is right."""
    found = list(all_checks(Trainer("sidecar", (3, 13), SIDECAR, None)))
    assert {one.check for one in found if one.status == "skip"} >= {"python", "torch", "nvrx", "heartbeats", "nccl"}


def _one(
    check: str,
    *,
    role: Role = "both",
    python: tuple[int, int] = (3, 11),
    versions: dict[str, str | None] | None = None,
    gpus: int | None = 0,
    command: list[str] | None = None,
    settings: dict[str, Any] | None = None,
) -> Finding:
    seen = Trainer(role, python, versions or {}, gpus, command, settings or {})
    (found,) = [one for one in all_checks(seen) if one.check == check]
    return found


def test_variables_that_are_misspelt(tmp_path: Path) -> None:
    """Each is named with what was probably meant; a number that is none and a run that is no file name are told."""
    wrong = {"HEADWAY_STTE_DIR": "/x", "HEADWAY_FROBNICATE": "1", "HEADWAY_PODS": "two", "HEADWAY_TRAIN_STEPS": "5"}
    found = [one for one in doctor("--dir", str(tmp_path), **wrong).findings if one["check"] == "environment"]
    assert {(one["what"].split()[0], one["status"]) for one in found} == {
        ("HEADWAY_STTE_DIR", "warn"),
        ("HEADWAY_FROBNICATE", "warn"),
        ("HEADWAY_PODS='two'", "warn"),
    }
    assert "is HEADWAY_STATE_DIR meant?" in {one["do"] for one in found}
    bad = doctor("--dir", str(tmp_path), "--run", "../up")
    assert (bad.code, bad.one("environment")[0]) == (1, "fail")


def test_every_variable_is_known() -> None:
    """Those of the README's table, and none that no longer exists but the pod supervisor's own mark."""
    table = (CODE.parent / "README.md").read_text().partition("### Environment")[2].partition("## Alerts")[0]
    assert set(re.findall(r"`(HEADWAY_[A-Z_]+)`", table)) == KNOWN - {"HEADWAY_POD_SUPERVISOR_PID"}


def test_advice_comes_from_headway_advise(tmp_path: Path) -> None:
    """A run that it cannot read is not checked, with its own words why."""
    found = doctor("--dir", str(tmp_path), "--state-dir", str(tmp_path), "--run", "none")
    assert found.one("advice")[0] == "skip"
    assert "none" in found.one("advice")[1]


@pytest.mark.parametrize(
    "options",
    [
        ["--nonsense"],
        ["--role", "judge"],
        ["--listen", "9838"],
        ["--listen", ":0"],
        ["--prometheus", "ftp://x"],
        ["left"],
    ],
)
def test_bad_usage(options: list[str]) -> None:
    """One line, exit code 2."""
    done = run_doctor(*options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_it_fits_a_terminal_and_trusts_no_name(tmp_path: Path) -> None:
    """80 columns, no colour in a pipe, what to do below what was found, and no control character of a folder's name."""
    (tmp_path / "other\x1b[31mred").mkdir()
    (tmp_path / "other\x1b[31mred" / "launcher.jsonl").touch()
    done = run_doctor("--dir", str(tmp_path), "--run", "mine")
    assert "\x1b" not in done.stdout
    assert "other?[31mred" in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    assert re.search(r"^ {22}-> set HEADWAY_RUN alike", done.stdout, re.MULTILINE)
    assert re.search(r"^0 failed, \d+ to look at, \d+ fine, \d+ not checked$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals(tmp_path: Path, no_colour: str, coloured: bool) -> None:
    """On a real terminal the first word of each finding has a colour, unless NO_COLOR is set."""
    reader, writer = pty.openpty()
    variables = os.environ | {"NO_COLOR": no_colour, "HEADWAY_LISTEN": "127.0.0.1:1"}
    command = [sys.executable, "-m", "headway", "doctor", "--dir", str(tmp_path)]
    try:
        with subprocess.Popen(command, env=variables, stdout=writer) as process:
            os.close(writer)
            shown = bytearray()
            try:
                while data := os.read(reader, 4_096):
                    shown += data
            except OSError:  # that is how a terminal ends
                pass
        assert process.returncode == 0
    finally:
        os.close(reader)
    assert (b"\x1b[32mok" in shown) == coloured


def test_a_reader_that_has_had_enough(tmp_path: Path) -> None:
    """`headway doctor | head -1` ends quietly."""
    command = f"{sys.executable} -m headway doctor --dir {tmp_path} --listen 127.0.0.1:1 | head -1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_probe_that_dies_or_fails_costs_itself_only() -> None:
    """In a process of its own (no thread may be there to be forked): one is killed, one raises, one is fine."""
    code = (
        "import os; from headway.doctor.gather import gather\n"
        "print(gather({'dies': os.abort, 'fails': lambda: 1 / 0, 'fine': lambda: {'a': 1}}, 5))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert gather({}) == {}
    assert "'dies': Answer(facts=None, problem='the process that looked died'" in done.stdout
    assert "'fails': Answer(facts=None, problem='ZeroDivisionError: division by zero'" in done.stdout
    assert "'fine': Answer(facts={'a': 1}, problem=''" in done.stdout


def test_every_check_has_a_test() -> None:
    """Each name stands in the tests beside this one, or in it."""
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_doctor_*.py"))
    assert [check for check in CHECKS if f'"{check}"' not in sources] == []


def test_wide_terminals_are_used() -> None:
    """And narrow ones get lines that can still be read."""
    found = [Finding("nvml", "fail", "word " * 60, "do " * 60)]
    for width, longest in ((120, 120), (80, 80), (20, 60)):
        assert longest - 8 < max(map(len, lines("heading", found, width, colour=False))) <= longest
