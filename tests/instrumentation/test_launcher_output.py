"""The lines here were printed by the named launcher with two workers; only host names and paths were changed."""

# ruff: noqa: E501 - what launchers print is as long as it is

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.events import KINDS
from headway.launcher_output import MAX_LINE_BYTES, LauncherOutput, LineSplitter, Seen

TORCHRUN_213 = r"""
W1130 14:43:39.355000 5118 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 5123 closing signal SIGTERM
E1130 14:43:39.357000 5118 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) local_rank: 1 (pid: 5124) of binary: /venv/bin/python3
W1130 14:43:39.684000 5118 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 5126 closing signal SIGTERM
E1130 14:43:39.688000 5118 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 5127) of binary: /venv/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
die.py FAILED
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 5127)  (SIGKILL)
"""

FT_LAUNCHER_041 = r"""
[2026-11-30 14:43:53,860] [INFO] [ft_launcher5218@host] Using nproc_per_node=2.
  nproc_per_node   : 2
[2026-11-30 14:43:56,729] [ERROR] [ft_launcher5218@host] gpu_ib_map is empty. Disable NIC health check for local_rank: 0
[2026-11-30 14:43:59,220] [WARNING] [RankMonServer5224@host:1] Did not get subsequent heartbeat. Waited 2.00 seconds.
[2026-11-30 14:43:59,220] [WARNING] [RankMonServer5224@host:1] FT timeout elapsed.
[2026-11-30 14:43:59,436] [ERROR] [ft_launcher5218@host] failed (exitcode: -9) local_rank: 1 (pid: 5226) of binary: /venv/bin/python3
[2026-11-30 14:43:59,436] [INFO] [ft_launcher5218@host] [default] Worker group UNHEALTHY. 3/3 attempts left; will restart worker group
[2026-11-30 14:43:59,443] [WARNING] [ft_launcher5218@host] Sending process 5225 closing signal SIGTERM
[2026-11-30 14:44:06,238] [WARNING] [RankMonServer5224@host:3] Did not get initial heartbeat. Waited 3.00 seconds.
[2026-11-30 14:44:14,094] [ERROR] [ft_launcher5218@host] failed (exitcode: 1) local_rank: 1 (pid: 5326) of binary: /venv/bin/python3
[2026-11-30 14:44:14,094] [INFO] [ft_launcher5218@host] Stopping workers... Timeout = 30 sec.
[2026-11-30 14:44:14,137] [ERROR] [ft_launcher5218@host] failed (exitcode: 1) local_rank: 1 (pid: 5326) of binary: /venv/bin/python3
"""

FT_LAUNCHER_060 = r"""
2026-11-30 14:45:41,082 [INFO] [host] [workload:?(?) infra:?(?)] launcher.py:2610 Using nproc_per_node=2.
2026-11-30 14:45:47,151 [WARNING] [host] [workload:?(1) infra:?(?)] rank_monitor_server.py:497 [Cycle 0] Did not get subsequent heartbeat. Waited 2.00 seconds.
E1130 14:45:47.346000 5575 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 5582) of binary: /venv/bin/python
2026-11-30 14:45:47,348 [INFO] [host] [workload:?(?) infra:?(?)] profiling.py:90   - Cycle: 1 Event: failure_detected Node: localhost_5575_0 Rank: 0 Time: 2026-11-30 14:45:47.348 UTC
2026-11-30 14:45:47,348 [INFO] [host] [workload:?(?) infra:?(?)] launcher.py:561 [default] Worker group UNHEALTHY. 3/3 attempts left; will restart worker group
2026-11-30 14:45:56,171 [WARNING] [host] [workload:?(1) infra:?(?)] rank_monitor_server.py:487 [Cycle 1] Did not get initial heartbeat. Waited 3.00 seconds.
"""

FT_LAUNCHER_060_JOINS = r"""
2026-12-01 04:53:31,309 [INFO] [host] [workload:?(?) infra:0(?)] profiling.py:90   - Cycle: 0 Event: rendezvous_started Node: localhost_31124_0 Rank: None Time: 2026-12-01 04:53:31.308 UTC
2026-12-01 04:53:37,320 [INFO] [host] [workload:?(?) infra:0(?)] profiling.py:90   - Cycle: 1 Event: failure_detected Node: localhost_31124_0 Rank: 0 Time: 2026-12-01 04:53:37.320 UTC
2026-12-01 04:53:37,320 [INFO] [host] [workload:?(?) infra:0(?)] launcher.py:561 [default] Joining cluster restart (group_rank=0)
2026-12-01 04:53:37,320 [INFO] [host] [workload:?(?) infra:0(?)] launcher.py:879 Stopping workers... Timeout = 15 sec.
2026-12-01 04:53:38,410 [INFO] [host] [workload:?(?) infra:0(?)] ft_rendezvous_barrier.py:2184 The node 'localhost_31124_0' attempts to join the next round of the rendezvous 'none'.
"""

FT_LAUNCHER_070_CHECKS = r"""
2026-12-01 04:57:19,250 [INFO] [host] [workload:?(?) infra:?(?)] profiling.py:93   - Cycle: 1 Event: health_check_completed Node: localhost_942_0 Rank: None Time: 2026-12-01 04:57:19.250 UTC
"""

FT_LAUNCHER_041_JOINS = r"""
[2026-12-01 05:04:25,336] [INFO] [ft_launcher7246@host] The node 'localhost_7246_0' attempts to join the next round of the rendezvous 'none'.
[2026-12-01 05:04:34,606] [INFO] [ft_launcher7246@host] [default] Detected 1 new nodes from group_rank=0; will restart worker group
"""

FT_LAUNCHER_070 = FT_LAUNCHER_060.replace("launcher.py:561", "launcher.py:636").replace(
    "launcher.py:2610", "launcher.py:2754"
)


def seen(text: str) -> list[Seen]:
    output = LauncherOutput()
    return [event for line in text.splitlines() if (event := output.read(line)) is not None]


def exited(local_rank: int, pid: int, exit_code: int) -> Seen:
    return Seen("worker_exited", {"local_rank": local_rank, "pid": pid, "exit_code": exit_code})


def phase(name: str, node: str, cycle: int, told_wall: float, **more: int) -> Seen:
    return Seen("launcher_phase", {"name": name, "cycle": cycle, "node": node, "told_wall": told_wall, **more})


def test_torchrun() -> None:
    """The exit code of the first worker that failed is found in torchrun's output, a signal as a negative number."""
    assert seen(TORCHRUN_213) == [exited(1, 5124, 3), exited(1, 5127, -9)]


def test_ft_launcher_041() -> None:
    """0.4.1 names the global rank of a silent worker; the slot follows from it; a failure that it prints twice counts once."""
    assert seen(FT_LAUNCHER_041) == [
        Seen("heartbeat_missed", {"which": "subsequent", "waited_seconds": 2.0, "local_rank": 1}),
        exited(1, 5226, -9),
        Seen("worker_group_failed", {"restarts_left": 3, "restarts_limit": 3}),
        Seen("heartbeat_missed", {"which": "initial", "waited_seconds": 3.0, "local_rank": 1}),
        exited(1, 5326, 1),
    ]


@pytest.mark.parametrize("text", [FT_LAUNCHER_060, FT_LAUNCHER_070])
def test_ft_launcher_060_and_070(text: str) -> None:
    """0.6 and 0.7 name the slot of a silent worker themselves."""
    assert seen(text) == [
        Seen("heartbeat_missed", {"which": "subsequent", "waited_seconds": 2.0, "local_rank": 1}),
        exited(1, 5582, -9),
        phase("failure_detected", "localhost_5575_0", 1, 1796049947.348, group_rank=0),
        Seen("worker_group_failed", {"restarts_left": 3, "restarts_limit": 3}),
        Seen("heartbeat_missed", {"which": "initial", "waited_seconds": 3.0, "local_rank": 1}),
    ]


def test_a_restart_that_another_node_began() -> None:
    """Where nothing failed, every version's launcher says that it joins a restart, each in its own words."""
    assert seen(FT_LAUNCHER_041_JOINS) == [Seen("restart_joined", {"group_rank": 0, "nodes_waiting": 1})]
    assert seen(FT_LAUNCHER_060_JOINS) == [
        phase("rendezvous_started", "localhost_31124_0", 0, 1796100811.308),
        phase("failure_detected", "localhost_31124_0", 1, 1796100817.320, group_rank=0),
        Seen("restart_joined", {"group_rank": 0}),
    ]


def test_a_stage_that_only_070_has() -> None:
    """A stage of a later version is told by its name, whatever it is."""
    (found,) = seen(FT_LAUNCHER_070_CHECKS)
    assert found == phase("health_check_completed", "localhost_942_0", 1, 1796101039.250)


@pytest.mark.parametrize(
    "line",
    [
        "Cycle: 1 Event: failure_detected Node: n Rank: 0 Time: 2026-13-01 04:57:19.250 UTC",
        "Cycle: 1 Event: failure_detected Node: n Rank: zero Time: 2026-12-01 04:57:19.250 UTC",
        "Cycle: 1 Event: failure_detected Node: " + 300 * "n" + " Rank: 0 Time: 2026-12-01 04:57:19.250 UTC",
        "Event: the group will restart worker group, Joining cluster restart",
    ],
)
def test_what_only_looks_like_a_stage(line: str) -> None:
    """A worker that prints the like makes no event and no error."""
    assert seen(line) == []


def test_slot_is_left_out_when_the_line_does_not_tell() -> None:
    """Without the number of workers a global rank is no slot: a wrong slot would blame a healthy worker."""
    line = "[…] [WARNING] [RankMonServer5224@host:9] Did not get subsequent heartbeat. Waited 900.00 seconds."
    assert seen(line) == [Seen("heartbeat_missed", {"which": "subsequent", "waited_seconds": 900.0})]


@pytest.mark.parametrize(
    ("line", "which"),
    [
        ("[Cycle 0] Section 'step' has been open for 61.25 seconds. Timeout is 60.00 seconds.", "section"),
        ("[Cycle 0] Was out of section for 61.25 seconds. Timeout is 60.00 seconds.", "out_of_section"),
    ],
)
def test_section_timeouts(line: str, which: str) -> None:
    """A hang that NVRx's sections found is a missed heartbeat too."""
    assert seen(line) == [Seen("heartbeat_missed", {"which": which, "waited_seconds": 61.25})]


def test_prefixed_lines_are_read() -> None:
    """A log shipper's or srun's prefix does not hide a line."""
    assert seen("0: " + TORCHRUN_213.splitlines()[2]) == [exited(1, 5124, 3)]


def test_fields_are_those_of_the_events() -> None:
    """Only fields that the journal's schema knows are written."""
    for event in seen(TORCHRUN_213 + FT_LAUNCHER_041 + FT_LAUNCHER_041_JOINS + FT_LAUNCHER_060_JOINS):
        assert set(event.fields) <= set(KINDS[event.kind].fields)


@given(st.text())
def test_other_output_is_silent(text: str) -> None:
    """What workers print is neither an error nor an event."""
    assert LauncherOutput().read(text) is None


@given(st.lists(st.sampled_from([b"ab", b"\n", b"\r", b"\r\n", "é".encode(), b"\xff", b"c" * 60])), st.data())
def test_lines_do_not_depend_on_how_the_stream_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    """A line that arrives in pieces is the line that arrives at once."""
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    whole, pieces = LineSplitter(limit=100), LineSplitter(limit=100)
    expected = [*whole.feed(stream), *whole.flush()]
    got = [line for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for line in pieces.feed(stream[a:b])]
    assert [*got, *pieces.flush()] == expected


def test_memory_is_bounded() -> None:
    """A worker that prints megabytes without a newline costs no memory, and the next line is read again."""
    splitter = LineSplitter()
    for _ in range(100):
        assert list(splitter.feed(b"x" * MAX_LINE_BYTES)) == []
    assert list(splitter.feed(b"\nnext\n")) == ["next"]
