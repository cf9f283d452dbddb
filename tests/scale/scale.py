"""One Prometheus, 2,048 pods: what the rules and the *Fleet* dashboard cost. `python tests/scale/scale.py [--runs N] [--pods N] [--gpus]`.

A fleet with all sorts of failures is handed over as if it had been scraped every 15 s for twenty minutes; then Prometheus gets the rules,
all of their groups at one interval, and evaluates them as it always does. Processor time is that of its process, less what it uses
without rules; time by the clock is what it says itself. Exits with 1 when one evaluation takes more than a second of processor time, when a
rule cannot be evaluated, or when an alert that the fleet's failures ask for does not fire.

With `--gpus` each pod has eight GPUs, a host, cards and volumes, all of them well; what the rules on these cost comes on top, unbounded.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("alerts", "dashboards", "exporter"))

import past
import remote_write
from fleet import EVERY, RANKS, Fleet
from rendered import filled, load, queries
from scale_server import PROMETHEUS, PROMTOOL, Server, prometheus

from headway_alerts import catalogue, health, render
from headway_alerts.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fleet import Series

    from headway_alerts.model import Group

MOST_SECONDS: Final = 1.0
"""Of one evaluation of all rules."""
PASS_SECONDS: Final = 10
PASSES: Final = 5
AHEAD_SECONDS: Final = 480
"""Scrapes that are there before their time: while one measures, nothing else comes in."""
QUERY_ROUNDS: Final = 5
DEAREST: Final = 12


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    processor: float
    clock: float

    def __str__(self) -> str:
        return f"{self.processor:9.3f} s {self.clock:9.3f} s"


def main() -> int:
    """Prints the table; returns the exit code."""
    options = _parser().parse_args()
    if PROMETHEUS is None or PROMTOOL is None:
        print("scale: there is no prometheus on this machine; on Debian: apt-get install prometheus", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), options.runs, options.pods, options.gpus)


def measure(folder: Path, runs: int, pods: int, gpus: bool) -> int:
    """All of it, in an empty folder."""
    groups = catalogue.groups(Config())
    fleet = Fleet(runs, pods, time.time() + AHEAD_SECONDS, gpus)
    old = past.write(folder, fleet, groups)
    with prometheus(folder) as server:
        count = filled_with(server, fleet)
        print(f"{runs * pods} pods x {RANKS} ranks in {runs} runs: {count} series, {count / runs / pods:.0f} a pod")
        print(f"and {old} recorded samples of the past; Prometheus holds {server.resident_bytes() / 1e9:.1f} GB\n")
        print(f"{'':44}{'processor':>11} {'clock':>11}")
        idle = _idle(server)
        same = tuple(replace(group, interval_seconds=0) for group in groups)
        bound = rules_cost(server, tuple(group for group in same if not gpus or group.file != health.FILE), idle)
        what = "all rules, once" if not gpus else "all rules but those on GPUs and hosts, once"
        print(f"{what:44}{bound}   at most {MOST_SECONDS:g}")
        total = rules_cost(server, same, idle) if gpus else bound
        if gpus:
            print(f"{'with those, which are due once a minute':44}{total}")
        share = _share({group.name: group.interval_seconds or EVERY for group in groups}, server, total)
        print(f"{'all rules, as often as each is due':44}{share:11.1%}  of a core")
        faults = [*rules(server), *dashboard(server), *silent(server, fleet)]
        if time.time() > fleet.end:
            faults.append(
                "the machine was too busy: measuring went on after the last scrape, so the figures are too low"
            )
    for fault in faults:
        print(f"WRONG: {fault}")
    return int(bool(faults) or bound.processor > MOST_SECONDS)


def filled_with(server: Server, fleet: Fleet) -> int:
    """Hands over the fleet; returns how many series it has."""
    return remote_write.write(server.address, _encoded(fleet))


def _encoded(fleet: Fleet) -> Iterator[bytes]:
    encoder = remote_write.Encoder(fleet.times())
    known: dict[Series, bytes] = {}
    for pod in fleet.series():
        common = remote_write.labels(pod.common)
        for one in pod.series:
            if one.differs:
                rest = remote_write.labels(pod.own(one)) + encoder.samples(one.values)
            elif (rest := known.get(one, b"")) == b"":
                rest = known[one] = remote_write.labels(one.labels) + encoder.samples(one.values)
            yield remote_write.series(common, rest)


def _idle(server: Server) -> float:
    """Processor seconds a second that it uses without rules, once it has come to rest."""
    time.sleep(10)
    before, began = server.processor_seconds(), time.monotonic()
    time.sleep(10)
    return (server.processor_seconds() - before) / (time.monotonic() - began)


def rules_cost(server: Server, groups: tuple[Group, ...], idle: float) -> Cost:
    """Of one pass over these groups, the mean of a few; the first one, which makes the recorded series, is left out."""
    server.give(render.rule_file(groups, Config()), f"{PASS_SECONDS}s")
    _evaluated(server, time.time())
    before, began, clocks = server.processor_seconds(), time.time(), []
    for _ in range(PASSES):
        time.sleep(PASS_SECONDS)
        clocks.append(sum(group["evaluationTime"] for group in server.groups()))
    spent = server.processor_seconds() - before - idle * (time.time() - began)
    return Cost(spent / PASSES, statistics.median(clocks))


def _share(intervals: dict[str, float], server: Server, total: Cost) -> float:
    """Of a core, with every group at its own interval in seconds; what a group costs goes by the clock's share of it."""
    clocks = {group["name"]: group["evaluationTime"] for group in server.groups()}
    a_second = sum(clock / intervals[name] for name, clock in clocks.items())
    return float(a_second * total.processor / sum(clocks.values()))


def _evaluated(server: Server, since: float) -> None:
    """Waits until every group was evaluated twice."""
    for _ in range(2):
        stamps = {group["name"]: group["lastEvaluation"] for group in server.groups()}
        for _ in range(600):
            now = {group["name"]: group["lastEvaluation"] for group in server.groups()}
            if now and all(now[name] != stamps.get(name) for name in now):
                break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"some rules were not evaluated since {since}")


def rules(server: Server) -> Iterable[str]:
    """Prints the dearest of them by the clock of their last evaluation; yields what went wrong."""
    groups = server.groups()
    for group in groups:
        print(f"  {group['name']:42}{'':11} {group['evaluationTime']:9.3f} s")
    print("\ndearest rules, last evaluation")
    every = [rule for group in groups for rule in group["rules"]]
    for rule in sorted(every, key=lambda one: one["evaluationTime"], reverse=True)[:DEAREST]:
        print(f"  {rule['name']:54} {rule['evaluationTime']:9.3f} s")
    return [f"{rule['name']}: {rule['lastError']}" for rule in every if rule["health"] != "ok"]


def dashboard(server: Server) -> Iterable[str]:
    """Asks what *Fleet* asks; prints the whole and the dearest panels; yields queries without an answer."""
    print("\nFleet dashboard, all runs, 6 h")
    costs: dict[str, Cost] = {}
    empty = []
    for where, target in queries(load("headway-fleet")):
        ask = _asking(server, target)
        if not ask()["result"]:
            empty.append(f"no answer to {where}")
        costs[where] = _cost(server, ask)
    whole = Cost(sum(one.processor for one in costs.values()), sum(one.clock for one in costs.values()))
    print(f"  {f'all {len(costs)} queries':42}{whole}")
    for where, cost in sorted(costs.items(), key=lambda one: one[1].clock, reverse=True)[:5]:
        print(f"  {where:42}{cost}")
    return empty


def _asking(server: Server, target: dict[str, Any]) -> Callable[[], Any]:
    expr, now = filled(target["expr"], window="6h"), time.time()
    if target.get("instant", False):
        return lambda: server.get("query", query=expr, time=f"{now}")
    return lambda: server.get("query_range", query=expr, start=f"{now - 21_600}", end=f"{now}", step="15")


def _cost(server: Server, ask: Callable[[], Any]) -> Cost:
    before, began = server.processor_seconds(), time.perf_counter()
    for _ in range(QUERY_ROUNDS):
        ask()
    clock = time.perf_counter() - began
    return Cost((server.processor_seconds() - before) / QUERY_ROUNDS, clock / QUERY_ROUNDS)


def silent(server: Server, fleet: Fleet) -> Iterable[str]:
    """Alerts that should be there by now, pending or firing, and are not."""
    found = {(one["metric"]["alertname"], one["metric"]["run"]) for one in server.query("ALERTS")}
    names = sorted({name for name, _ in found})
    print(f"\nalerts pending or firing: {', '.join(names)}")
    return [f"{alert} does not fire for {run}" for alert, run in sorted(fleet.alerts - found)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What rules and the Fleet dashboard cost one Prometheus.")
    parser.add_argument("--runs", type=int, default=32, metavar="N", help="runs (default %(default)s)")
    parser.add_argument("--pods", type=int, default=64, metavar="N", help="pods of each run (default %(default)s)")
    parser.add_argument("--gpus", action="store_true", help="with GPUs, hosts, network cards and volumes")
    return parser


assert EVERY < AHEAD_SECONDS

if __name__ == "__main__":
    sys.exit(main())
