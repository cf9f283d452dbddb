"""`headway exporter`: options, variables, errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sidecar_process import sidecar

from headway_exporter.routes import Request, health
from headway_exporter.server import parse_address

if TYPE_CHECKING:
    from pathlib import Path


def run(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", "exporter", *options]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        (["--listen", "nonsense"], {}, "[host]:port"),
        (["--listen", "::1:9838"], {}, "brackets"),
        ([], {"HEADWAY_LISTEN": ":99999"}, "argument --listen or HEADWAY_LISTEN: ':99999' is no address"),
        (["--run", "../escape"], {}, "no safe file name"),
        (
            [],
            {"HEADWAY_SILENCE_SECONDS": "soon"},
            "argument --silence-seconds or HEADWAY_SILENCE_SECONDS: 'soon' is no",
        ),
        (["--silence-seconds", "-1"], {}, "no number of seconds"),
        (["--pod-index", " "], {}, "--pod-index"),
        (["--no-such-option"], {}, "unrecognized arguments"),
    ],
)
def test_a_bad_option_gets_one_line_and_exit_2(options: list[str], environ: dict[str, str], words: str) -> None:
    """At 3 a.m. nobody reads a usage screen to find the error in it."""
    done = run(*options, **environ)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("index", ["é" * 40, "/" * 67], ids=["letters", "slashes"])
def test_a_pod_index_is_refused_that_is_too_long_for_a_files_name(tmp_path: Path, index: str) -> None:
    """Its folder would never be written, and so its memory be lost without anybody's fault but ours."""
    command = [sys.executable, "-m", "headway_exporter", "--dir", str(tmp_path), "--pod-index", index]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "choose a shorter one" in ended.stderr


def test_help_names_defaults_units_and_variables() -> None:
    """Everything can be set in a pod's manifest, and the help says how."""
    text = run("--help", HEADWAY_RUN="myrun").stdout
    for word in (
        "HEADWAY_DIR",
        "HEADWAY_RUN",
        "HEADWAY_POD_INDEX",
        "HEADWAY_LISTEN",
        "HEADWAY_SILENCE_SECONDS",
        "seconds",
        "myrun",
        ":9838",
    ):
        assert word in text


def test_variables_stand_in_for_options(tmp_path: Path) -> None:
    """The labels on every series come from where the pod says who it is."""
    with sidecar(tmp_path, HEADWAY_RUN="named-run", HEADWAY_POD_INDEX="7") as exporter:
        [sample] = exporter.families()["headway_ranks"].samples
    assert sample.labels == {"run": "named-run", "pod_index": "7"}


def test_an_address_that_is_taken_is_said_so() -> None:
    """The second sidecar of a pod must say why it does not serve."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("--listen", address)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"headway exporter: cannot listen on {address}: Address already in use; choose another with --listen\n"
    )


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("192.0.2.1:0", "Cannot assign requested address"),
        ("[2001:db8::1]:0", "Cannot assign requested address"),
        ("no..name:0", "'no..name' is no name of a host"),
        ("256.1.1.1:0", ""),
    ],
)
def test_an_address_that_is_not_ours_is_said_so(address: str, reason: str) -> None:
    """Whatever is wrong with it: one line that shows it as it was written."""
    done = run("--listen", address)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"cannot listen on {address}: {reason}" in done.stderr


def test_an_ipv6_address_is_served_and_shown_in_brackets(tmp_path: Path) -> None:
    """As it is written in a URL."""
    with sidecar(tmp_path, "--listen", "[::1]:0") as exporter:
        assert exporter.address[0] == "[::1]"
        assert exporter.get("/healthz")[0] == 200


def test_all_addresses_by_default(tmp_path: Path) -> None:
    """Prometheus scrapes the pod from outside, by IPv4 or IPv6."""
    with sidecar(tmp_path, "--listen", ":0") as exporter:
        exporter.address = ("127.0.0.1", exporter.address[1])
        assert exporter.get("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9838", ("", 9838)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9838", ("::1", 9838)),
        ("node-1:80", ("node-1", 80)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """Host and port as people write them."""
    assert parse_address(text) == address


def test_a_follower_that_stands_still_is_not_healthy() -> None:
    """A probe must see that the numbers are old although the port answers."""
    assert [health(lambda alive=alive: alive)(Request("/healthz")).status for alive in (True, False)] == [200, 503]
