"""A run with failures, its real sidecars, and a real Prometheus with the committed rules that scrapes them: a minute of data.

Two pods with a rank each, and a second run in which nothing happens. Rank 1 is killed and recovers, raises and recovers, and then fails
three times on one checkpoint: that incident stays open and recurring. One of pod 1's two network cards has no link. Each pod sees two
scripted GPUs, of which that of rank 1 has an uncorrected memory error before it is killed; of pod 1 Kubernetes tells then that a container
was restarted. Times are as short as they can be; names, rules and queries are the real ones.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import journal_folder
import sysfs_tree
from fake_nvml import FakeNvml
from journal_folder import HERE, meet, trainer, wait_ready
from kubernetes_api import Api, recorded, service_account
from rendered import NAMES, load, queries
from sidecar_process import sidecar
from sysfs_tree import ACTIVE, DOWN, MELLANOX

from headway_alerts import catalogue
from headway_alerts.config import Config
from headway_alerts.model import Recording
from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar_process import Sidecar

PROMETHEUS: Final = shutil.which("prometheus")
RULES: Final = Path(__file__).parents[2] / "alerts" / "rules"
RUN: Final = journal_folder.RUN
QUIET_RUN: Final = "quiet"
SCRAPE_SECONDS: Final = 1
RATE: Final = "6s"
"""What `$__rate_interval` is when one scrapes every second."""


def slow_recordings() -> Iterator[str]:
    """What panels show that is recorded once a minute only: there must be a value, whenever in its minute the story ends."""
    shown = "\n".join(target["expr"] for name in NAMES for _, target in queries(load(name)))
    for group in catalogue.groups(Config()):
        for rule in group.rules if group.interval_seconds else ():
            if isinstance(rule, Recording) and rule.record in shown:
                yield f'{rule.record}{{run="{RUN}"}}'


OUTCOME: Final = (
    'sum(run:headway_incidents_total:max{outcome="recovered"}) == 2',
    f'run:headway_step:max{{run="{RUN}"}} < run:headway_high_water_step:max',
    f'headway_same_checkpoint_loads{{run="{RUN}"}} >= 3',
    f'min by (run) (headway_async_writer_up{{run="{RUN}"}}) == 1',
    'ALERTS{alertname="HeadwayRecurringEntity",alertstate="firing"}',
    'ALERTS{alertname="HeadwayRecurringFailure",alertstate="firing"}',
    *slow_recordings(),
)
"""How the story ends: what the last samples must say, those too that are recorded once a minute."""


@dataclass(frozen=True)
class Live:
    """Where Prometheus answers, and the time in which everything happened."""

    address: str
    began: float
    ended: float

    @property
    def window(self) -> str:
        """As Grafana fills in `$__range`."""
        return f"{round(self.ended - self.began)}s"

    def get(self, path: str, **parameters: str) -> Any:
        """What Prometheus' interface answers, errors too."""
        body = urllib.parse.urlencode(parameters).encode()
        request = urllib.request.Request(f"{self.address}/api/v1/{path}", body)  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def over_time(self, expr: str) -> list[dict[str, Any]]:
        """Series over the whole window."""
        return self._result("query_range", query=expr, start=f"{self.began}", end=f"{self.ended}", step="1s")

    def at_the_end(self, expr: str) -> list[dict[str, Any]]:
        """Values at the end of it."""
        return self._result("query", query=expr, time=f"{self.ended}")

    def _result(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(path, **parameters)["result"]
        return found


@contextlib.contextmanager
def live(folder: Path) -> Iterator[Live]:
    """All of it; Prometheus goes on answering until the end, with what it had seen when the story was over."""
    with contextlib.ExitStack() as stack:
        gpus = [_gpus(folder / f"nvml-{number}", number) for number in (0, 1)]
        api = stack.enter_context(Api(service_account(folder / "account"), [recorded("running")]))
        environs = [gpus[0].environ, gpus[1].environ | api.environ]
        pods = [stack.enter_context(_sidecar(folder, number, RUN, **environs[number])) for number in (0, 1)]
        quiet = stack.enter_context(_sidecar(folder, 0, QUIET_RUN))
        address = stack.enter_context(prometheus_of(folder, [*pods, quiet]))
        calm = _train(folder, 0, QUIET_RUN, _acts("calm", None, 1, 4_000), "0")
        stack.callback(_end, [calm])
        quiet.until(lambda status: status["step"], "the first step")
        began = time.time()
        _story(folder, stack, gpus[1], api)
        _settle(address)
        yield Live(address, began, time.time())


def _sidecar(folder: Path, number: int, run: str, **environ: str) -> contextlib.AbstractContextManager[Sidecar]:
    _pod(folder, number, run).mkdir()
    cards = folder / f"cards-{number}"
    for card in range(2):
        sysfs_tree.port(cards, f"mlx5_{card}", state=DOWN if card == number == 1 else ACTIVE)
    options = (
        "--run",
        run,
        "--pod-index",
        str(number),
        "--state-dir",
        str(folder / "state"),
        "--sysfs-root",
        str(cards),
    )
    return sidecar(_pod(folder, number, run), *options, program=(str(HERE / "quick_sidecar.py"),), **environ)


def _pod(folder: Path, number: int, run: str) -> Path:
    return folder / f"{run}-{number}"


def _train(folder: Path, number: int, run: str, acts: Sequence[str], cycle: str) -> subprocess.Popen[str]:
    environ = {
        "HEADWAY_RUN": run,
        "HEADWAY_PODS": "2" if run == RUN else "1",
        "HEADWAY_NODE": f"node-{number}",
        "HEADWAY_SAMPLE_SECONDS": "1",
        "LOCAL_RANK": "0",
        "RANK": str(number),
        "CUDA_VISIBLE_DEVICES": _gpu(number),
        "TORCHELASTIC_RESTART_COUNT": cycle,
    }
    return trainer(_pod(folder, number, run), 0, *acts, ranks=2 if run == RUN else 1, **environ)


def _gpus(folder: Path, number: int) -> FakeNvml:
    """Of a pod's node: the one on which its rank runs, and one that nobody uses."""
    fake = FakeNvml(folder)
    fake.change(0, uuid=_gpu(number))
    idle = {"utilization": 0, "power": 120_000, "temperature": 38, "field.82.0": 36, "memory_used": 1_200_000_000}
    fake.change(1, uuid=_gpu(number + 2), **idle, **{"field.142.0": 0, "field.29.0": 2 * number})
    return fake


def _gpu(number: int) -> str:
    """Of rank 0 or 1; from 2 on of the idle ones."""
    return f"GPU-{number}a5c2b9e-1111-2222-3333-444455556666"


def _acts(incarnation: str, loaded: int | None, first: int, last: int, *then: str) -> tuple[str, ...]:
    """From the rendezvous to a step, six steps a second; every tenth is saved, and durable half a second later."""
    acts = [f"enter={incarnation}", f"phase=init:{0.6}"]
    acts += [] if loaded is None else [f"load={loaded}", "phase=checkpoint_load:0.4"]
    for step in range(first, last + 1):
        acts.append(f"steps={step}-{step}:0.15")
        if step % 10 == 0:
            acts += [f"save={step}", "phase=checkpoint_save:0.2"]
        if step % 10 == 4 and step - 4 >= first:
            acts += [f"commit={step - 4}", "queue=0"]
        if step % 25 == 0:
            acts += ["phase=eval:0.6"]
    return (*acts, *then)


def _fail(gpus: FakeNvml) -> None:
    """A GPU whose memory and links go bad, and which runs hot."""
    gpus.report(0, 94)
    errors = {"field.4.0": 1, "field.6.0": 1, "field.145.0": 1, "field.38.0": 9, "field.94.0": 7, "field.230.0": 1}
    gpus.change(0, throttle=0x40, clock_sm=1_200, temperature=88, **errors, **{"field.83.0": 20_000_000})


def _story(folder: Path, stack: contextlib.ExitStack, gpus: FakeNvml, api: Api) -> None:
    lives: Sequence[tuple[int | None, int, int, str]] = (
        (None, 1, 57, "kill"),
        (50, 51, 95, "raise"),
        (90, 91, 126, "raise"),
        (120, 121, 126, "raise"),
        (120, 121, 126, "raise"),
        (120, 121, 123, "stay"),
    )
    for cycle, (loaded, first, last, end) in enumerate(lives):
        peer = ("ready", "meet", "echo", "ready", "wait")
        last_words = {
            "kill": ("ready", "wait"),
            "raise": ("ready", "fault", "exit=1"),
            "stay": ("queue=0", "ready", "wait"),
        }[end]
        acts = [("meet", *_acts(f"i{cycle}", loaded, first, last, *words)) for words in (peer, last_words)]
        both = [_train(folder, number, RUN, one, str(cycle)) for number, one in enumerate(acts)]
        stack.callback(_end, both)
        meet(*both)
        for process in both:
            wait_ready(process)
        if end == "stay":
            return
        if end == "kill":
            errors = MELLANOX | {"counters/symbol_error": "12", "hw_counters/local_ack_timeout_err": "9"}
            sysfs_tree.port(folder / "cards-1", "mlx5_0", counters=errors)
            _fail(gpus)
            api.pods[:] = [recorded("oom_killed_and_restarted")]
            both[1].kill()
        time.sleep(1.5)  # until somebody notices
        meet(both[0])
        wait_ready(both[0])
        _end(both)
        time.sleep(1.5)  # until they are there again


def _settle(address: str) -> None:
    """Waits until Prometheus has heard the story's end, on a busy machine that takes a while; then for a few more scrapes of it."""
    deadline = time.monotonic() + 120
    while missing := _not_yet(address):
        assert time.monotonic() < deadline, f"not within two minutes: {missing}"
        time.sleep(0.5)
    time.sleep(3 * SCRAPE_SECONDS)


def _not_yet(address: str) -> list[str]:
    """What the last samples do not say, all of them asked at one moment: an earlier life may have said some of it, and no more."""
    now = Live(address, 0, time.time())
    return [expr for expr in OUTCOME if not now.at_the_end(expr)]


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def prometheus_of(folder: Path, sidecars: Sequence[Sidecar]) -> Iterator[str]:
    """A Prometheus with the committed rules that scrapes them; its address."""
    assert PROMETHEUS is not None
    targets = [f"{one.address[0]}:{one.address[1]}" for one in sidecars]
    config = {
        "global": dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{SCRAPE_SECONDS}s"),
        "rule_files": [str(path) for path in sorted(RULES.glob("*.yaml"))],
        "scrape_configs": [{"job_name": "headway", "static_configs": [{"targets": targets}]}],
    }
    file = folder / "prometheus.yaml"
    file.write_text(json.dumps(config))
    address = f"127.0.0.1:{runner.free_ports(1)}"
    command = [
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(f"http://{address}/-/ready", process, folder / "prometheus.log")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own
            return
        time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready after 30 s: {log.read_text()}")
