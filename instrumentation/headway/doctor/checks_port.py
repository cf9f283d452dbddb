"""Findings about the sidecar's port, its certificate and its scrape, from facts of `probes_port`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from headway.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway.doctor.findings import Role, Status
    from headway.doctor.gather import Answer
    from headway.doctor.probes_port import Access

_EXPIRED: Final = 10
_NOT_YET: Final = 9
_NAME: Final = frozenset({62, 63, 64})
"""OpenSSL's X509_V_ERR_*: host name, mail address, IP address."""
_LAST_SHARE: Final = 0.1
"""Of a certificate's life: what renews it should have done so by then (cert-manager does at a third)."""
_NEW_ONE: Final = "renew it: a sidecar takes new files into use without a restart"


def port(address: str, run: str, role: Role, answer: Answer, access: Access, wall: float) -> Iterator[Finding]:
    """The port, and the sidecar on it; `wall`: now, seconds since 1970."""
    facts = answer.facts
    if facts is None:
        do = "is the host's name found, and does what listens there answer?"
        yield Finding("port", "warn", f"{address}: {answer.problem}", do)
        yield from _unknown("nothing is known of the port")
    elif not facts["listens"]:
        yield _free(address, role, facts)
        yield from _unknown("none answers")
    elif not facts["http"] and facts["encrypted"]:
        yield Finding("port", "skip", f"{address}: who listens speaks TLS, and does not answer us")
        yield certificate(facts["certificate"], access, wall)
        yield _not_let_in(facts["certificate"], access)
    elif not facts["http"] or not _is_sidecar(facts):
        silent = "" if facts["answers"] else " and does not answer"
        do = "end that program, or choose another port (HEADWAY_LISTEN)"
        yield Finding("port", "fail", f"{address}: another program listens{silent}", do)
        yield from _unknown("another program has its port")
    else:
        yield Finding("port", "ok", f"{address}: a sidecar answers{' by TLS' if facts['encrypted'] else ''}")
        yield certificate(facts.get("certificate"), access, wall)
        yield _scrape(run, facts, access)


def certificate(told: Mapping[str, Any] | None, access: Access, wall: float) -> Finding:
    """Whether others, Prometheus first, can believe it; None: there is none."""
    if told is None:
        return Finding("certificate", "skip", "it does not speak TLS (--web-config of `headway exporter`)")
    code = told.get("code")
    if "unusable" in told:
        do = "give certificates in PEM, the key not encrypted"
        return Finding("certificate", "fail", f"--ca-file, --cert-file or --key-file: {told['unusable']}", do)
    if "refused" in told:
        return Finding("certificate", "skip", f"no TLS with us: {told['refused']}", _own_one(access))
    if code in (_EXPIRED, _NOT_YET):
        what = "it has expired" if code == _EXPIRED else "it is not valid yet: is this machine's clock right?"
        return Finding("certificate", "fail", what, _NEW_ONE)
    if code in _NAME:
        status: Status = "fail" if access.server_name else "warn"
        do = "say the name in it by --server-name, as in Prometheus' tls_config (server_name)"
        return Finding("certificate", status, str(told["problem"]), do)
    if code is not None:
        status = "fail" if access.ca_file else "warn"
        do = "name the authority that has signed it by --ca-file, as in Prometheus' tls_config (ca_file)"
        return Finding("certificate", status, f"it cannot be believed: {told['problem']}", do)
    left = told["until"] - wall
    words = f"it is good for another {_span(left)}"
    if left < _LAST_SHARE * (told["until"] - told["from"]):
        return Finding("certificate", "warn", words, _NEW_ONE)
    return Finding("certificate", "ok", words)


def _free(address: str, role: Role, facts: Mapping[str, Any]) -> Finding:
    if facts["bind"]:
        do = "choose another address (HEADWAY_LISTEN)"
        return Finding("port", "fail", f"{address}: cannot be listened on: {facts['bind']}", do)
    if role == "trainer":
        do = "start `headway exporter` beside the trainer; or tell where it listens (HEADWAY_LISTEN)"
        return Finding("port", "warn", f"{address}: no sidecar answers: {facts['why']}", do)
    return Finding("port", "ok", f"{address} is free")


def _is_sidecar(facts: Mapping[str, Any]) -> bool:
    return bool(facts["ours"]) or (facts["server"] == "headway" and facts["status"] in (401, 429, 500, 503))


def _unknown(why: str) -> Iterator[Finding]:
    yield Finding("certificate", "skip", why)
    yield Finding("sidecar", "skip", why)


def _own_one(access: Access) -> str:
    if access.cert_file:
        return "is --cert-file signed by an authority of client_ca_file, and still valid?"
    return "it wants a certificate of ours: name one by --cert-file and --key-file"


def _not_let_in(told: Mapping[str, Any], access: Access) -> Finding:
    if "unusable" in told:
        return Finding("sidecar", "skip", "it was not asked, for want of certificates")
    status: Status = "fail" if access.cert_file else "skip"
    return Finding("sidecar", status, "it ends the connection before it answers", _own_one(access))


def _scrape(run: str, facts: Mapping[str, Any], access: Access) -> Finding:
    if facts["status"] == 401:
        return _password(facts, access)
    if facts["status"] == 500:
        return Finding(
            "sidecar", "fail", "its web configuration cannot be used, and it lets nobody in", "its log says why"
        )
    if facts["status"] != 200:
        return Finding("sidecar", "warn", f"it answers {facts['status']}", "wait until it has read its memory")
    if not facts["parses"]:
        return Finding("sidecar", "fail", "its scrape cannot be parsed", "is there a proxy between? ask it directly")
    told = re.sub(r"\\(.)", r"\1", facts["run"] or "")
    if told != run:
        do = "set HEADWAY_RUN alike for trainer and sidecar"
        return Finding("sidecar", "fail", f"it follows the run {told!r}, and this is {run!r}", do)
    return Finding("sidecar", "ok", f"its scrape can be parsed, and is of run {run}")


def _password(facts: Mapping[str, Any], access: Access) -> Finding:
    if not access.user:
        return Finding("sidecar", "skip", "it wants a password", "name it by --user and --password-file")
    if "until" not in facts.get("certificate", {"until": 0}):
        do = "mend what is said of its certificate: a password goes only to whom a certificate names"
        return Finding("sidecar", "skip", "it wants a password, and was not told ours", do)
    do = f"is it the password of {access.user} in basic_auth_users? `htpasswd -nBC 10 {access.user}` makes the hash"
    return Finding("sidecar", "fail", "it answers 401: wrong name or password", do)


def _span(seconds: float) -> str:
    return f"{seconds / 86_400:.0f} days" if seconds >= 2 * 86_400 else f"{seconds / 3_600:.1f} hours"
