"""Findings about clocks, NVIDIA's driver, and the sidecar's port, from facts of `probes_machine`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from headway.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway.doctor.findings import Role
    from headway.doctor.gather import Answer

_NVML: Final = {
    9: ("the kernel's driver is not loaded, or this container may not use it", "load it; mount /dev/nvidia*"),
    18: ("the library and the kernel's driver are of different versions", "restart the container, or the machine"),
}


def clock(answer: Answer) -> Finding:
    """Durations need one CLOCK_MONOTONIC, comparing pods a wall clock that is kept."""
    facts = answer.facts
    if facts is None:
        return Finding("clock", "skip", answer.problem)
    if facts["shifted"]:
        what = "this process is in a time namespace with a CLOCK_MONOTONIC of its own"
        return Finding("clock", "warn", what, "run trainer and sidecar in one time namespace")
    if facts["kept"] is False:
        do = "start chronyd (with rtcsync, or the kernel is not told) or systemd-timesyncd on the machine"
        return Finding("clock", "warn", "the kernel says that nothing keeps the wall clock right", do)
    if facts["kept"] is None:
        return Finding("clock", "skip", "the kernel does not tell whether the wall clock is kept right")
    return Finding("clock", "ok", "the wall clock is kept right")


def nvml(answer: Answer | None) -> Finding:
    """`answer` is None where GPUs are switched off."""
    if answer is None:
        return Finding("nvml", "skip", "HEADWAY_GPUS is off")
    if answer.hangs:
        do = "look for XIDs in the kernel's log; the GPU or the machine needs a reset. HEADWAY_GPUS=off leaves it alone"
        return Finding("nvml", "fail", f"the driver hangs: {answer.problem}", do)
    facts = answer.facts
    if facts is None:
        return Finding("nvml", "fail", f"the driver cannot be asked: {answer.problem}", "install it anew")
    if not facts["library"]:
        do = "where there are GPUs: NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility in this container"
        return Finding("nvml", "skip", "there is no NVIDIA driver here (libnvidia-ml.so.1)", do)
    if facts["code"]:
        what, do = _NVML.get(facts["code"], ("it does not answer", "look at nvidia-smi and the kernel's log"))
        return Finding("nvml", "fail", f"{what} (NVML code {facts['code']})", do)
    if not facts["gpus"]:
        return Finding("nvml", "warn", "the driver shows no GPU", "set NVIDIA_VISIBLE_DEVICES=all in this container")
    version = f", driver {facts['version']}" if facts["version"] else ""
    return Finding("nvml", "ok", f"GPUs that answer: {facts['gpus']}{version}")


def port(address: str, run: str, role: Role, answer: Answer) -> Iterator[Finding]:
    """The port, and the sidecar on it."""
    facts = answer.facts
    if facts is None:
        yield Finding(
            "port",
            "warn",
            f"{address}: {answer.problem}",
            "is the host's name found, and does what listens there answer?",
        )
        yield _no_sidecar("nothing is known of the port")
    elif not facts["listens"]:
        yield _free(address, role, facts)
        yield _no_sidecar("none answers")
    elif not facts["http"] and facts["encrypted"]:
        yield Finding("port", "skip", f"{address}: who listens wants a certificate: ask by `headway status`")
        yield _no_sidecar("it wants a certificate")
    elif not facts["http"] or not _is_sidecar(facts):
        silent = "" if facts["answers"] else " and does not answer"
        do = "end that program, or choose another port (HEADWAY_LISTEN)"
        yield Finding("port", "fail", f"{address}: another program listens{silent}", do)
        yield _no_sidecar("another program has its port")
    else:
        yield Finding("port", "ok", f"{address}: a sidecar answers{' by TLS' if facts['encrypted'] else ''}")
        yield _scrape(run, facts)


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


def _free(address: str, role: Role, facts: Mapping[str, Any]) -> Finding:
    if facts["bind"]:
        do = "choose another address (HEADWAY_LISTEN)"
        return Finding("port", "fail", f"{address}: cannot be listened on: {facts['bind']}", do)
    if role == "trainer":
        do = "start `headway exporter` beside the trainer; or tell where it listens (HEADWAY_LISTEN)"
        return Finding("port", "warn", f"{address}: no sidecar answers: {facts['why']}", do)
    return Finding("port", "ok", f"{address} is free")


def _is_sidecar(facts: Mapping[str, Any]) -> bool:
    return bool(facts["ours"]) or facts["status"] in (401, 503)


def _no_sidecar(why: str) -> Finding:
    return Finding("sidecar", "skip", why)


def _scrape(run: str, facts: Mapping[str, Any]) -> Finding:
    if facts["status"] == 401:
        return Finding("sidecar", "skip", "it wants a password: ask it with `headway status`")
    if facts["status"] != 200:
        return Finding("sidecar", "warn", f"it answers {facts['status']}", "wait until it has read its memory")
    if not facts["parses"]:
        return Finding("sidecar", "fail", "its scrape cannot be parsed", "is there a proxy between? ask it directly")
    told = re.sub(r"\\(.)", r"\1", facts["run"] or "")
    if told != run:
        do = "set HEADWAY_RUN alike for trainer and sidecar"
        return Finding("sidecar", "fail", f"it follows the run {told!r}, and this is {run!r}", do)
    return Finding("sidecar", "ok", f"its scrape can be parsed, and is of run {run}")
