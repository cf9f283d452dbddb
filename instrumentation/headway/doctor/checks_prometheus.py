"""Findings about Prometheus and Alertmanager, from facts of `probes_prometheus`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.doctor.findings import Finding

if TYPE_CHECKING:
    from headway.doctor.gather import Answer


def prometheus(url: str | None, run: str, answer: Answer | None) -> Finding:
    """`url` is None where none is asked for."""
    if url is None or answer is None:
        return Finding("prometheus", "skip", "none is asked for (--prometheus URL)")
    facts = answer.facts or {"problem": answer.problem}
    if "problem" in facts:
        return Finding("prometheus", "fail", f"{url} cannot be asked: {facts['problem']}", "is that its address?")
    if facts["failing"]:
        what = f"rules fail: {', '.join(facts['failing'][:3])}"
        return Finding("prometheus", "fail", what, f"{url.rstrip('/')}/rules shows why")
    if not facts["rules"]:
        return Finding(
            "prometheus", "fail", f"{url} has none of our rules", "add alerts/rules/*.yaml to its rule_files"
        )
    if not facts["sidecars"]:
        do = "add the sidecar's port to its scrape configuration (PodMonitor); see its page /targets"
        return Finding("prometheus", "warn", f"{url} has no series of the run {run}", do)
    return Finding(
        "prometheus", "ok", f"{facts['rules']} rules; sidecars of the run that are scraped: {facts['sidecars']}"
    )


def alertmanager(url: str | None, answer: Answer | None, prometheus: Answer | None) -> Finding:
    """`url` is None where none is asked for; whether Prometheus sends alerts anywhere is told by that one."""
    known = None if prometheus is None or prometheus.facts is None else prometheus.facts.get("alertmanagers")
    if known == 0:
        do = "add an Alertmanager to its alerting: section, or nobody hears of anything"
        return Finding("alertmanager", "warn", "Prometheus sends its alerts to no Alertmanager", do)
    if url is None or answer is None:
        return Finding("alertmanager", "skip", "none is asked for (--alertmanager URL)")
    facts = answer.facts or {"problem": answer.problem}
    if "problem" in facts:
        return Finding("alertmanager", "fail", f"{url} cannot be asked: {facts['problem']}", "is that its address?")
    do = "take routes and inhibitions from alerts/alertmanager.yaml (`headway rules --format alertmanager`)"
    if not facts["routes"]:
        what = f"no route of {url} names an alert of ours: all go to {facts['default'] or 'its default receiver'}"
        return Finding("alertmanager", "warn", f"{what}, what is critical and what is only told alike", do)
    if not facts["inhibits"]:
        return Finding(
            "alertmanager", "warn", f"{url} has routes for our alerts, but mutes none that follows from another", do
        )
    return Finding("alertmanager", "ok", "it has routes for our alerts, and mutes those that follow from others")
