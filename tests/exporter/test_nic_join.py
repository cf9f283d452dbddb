"""A failure that came of a lost link says so, and a healthy network, or another pod's, is not blamed: stories, told to a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpu_story import GpuStory
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_exporter.memory import encoder, recall
from headway_exporter.nics import MOST_KEPT, MOST_PORTS, Nics
from headway_exporter.observations import NicsSeen, PortSeen, VerdictSeen
from headway_exporter.origins import resolve
from headway_exporter.pod import Pod
from headway_exporter.recoveries import MOST_NICS
from headway_exporter.shift import moved


class NicStory(GpuStory):
    """Two ranks that have made ten steps by second 20, on a machine of two cards that were well at second 5."""

    def __init__(self, pod: int = 0, pods: int = 1) -> None:
        super().__init__(pod=pod, pods=pods)
        self.ports = {
            name: PortSeen(name, "1", True, (("link_downed", 3), ("symbol", 7))) for name in ("mlx5_0", "mlx5_1")
        }
        self.look(5.0)

    def look(self, at: float, told: float | None = None) -> None:
        """The sidecar looks at the cards."""
        self.pod.fold([NicsSeen("a start", tuple(self.ports.values()), at, self.wall + at)])
        self.pod.advance(at if told is None else told)

    def card(
        self, at: float, *, linked: bool = True, told: float | None = None, device: str = "mlx5_1", **errors: int
    ) -> None:
        """The sidecar finds a card like that."""
        before = self.ports[device]
        self.ports[device] = PortSeen(device, "1", linked, tuple(sorted((dict(before.errors) | errors).items())))
        self.look(at, told)

    def time_out(self, at: float, *slots: int) -> None:
        """Collectives break."""
        for slot in slots or self.ranks:
            self.echo(slot, at)

    def missed(self, at: float) -> None:
        """Every rank's monitor waits in vain, and kills it."""
        for slot in self.ranks:
            self.event(None, "heartbeat_missed", at, local_rank=slot, waited_seconds=900.0)
            self.die(slot, at + 1)

    def cards_told(self, index: int = -1) -> list[str]:
        """What the record tells of cards."""
        return [sign["text"] for sign in self.record(index)["evidence"] if sign["kind"] == "nic"]


def test_a_port_that_lost_its_link_before_a_time_out() -> None:
    """The story of the issue: likely, never confirmed, with what was seen as the alternative, counted once and told in the record."""
    story = NicStory()
    story.card(25.0, linked=False, link_downed=4)
    story.time_out(80.0)
    cause, _, confidence = story.answer
    assert (cause, confidence) == ("nic", "likely")
    assert story.cards_told() == ["network card mlx5_1 port 1 lost its link"]
    story.again(90.0)
    assert story.pod.failures.causes == {("launcher", "nic"): 1}


def test_a_link_that_was_lost_for_a_moment() -> None:
    """Between two looks it was gone and back: only the counter tells."""
    story = NicStory()
    story.card(25.0, link_downed=5)
    story.time_out(40.0)
    assert story.answer[0] == "nic"
    assert story.cards_told() == ["network card mlx5_1 port 1 lost its link for a moment, 2 times"]


@pytest.mark.parametrize("how", ["heartbeat", "hang_soft", "one echo", "aborted", "unknown"])
def test_what_a_lost_link_looks_like(how: str) -> None:
    """A hang noticed minutes later, a peer that seems to fail, NCCL's watchdog, and an end that nobody explains."""
    story = NicStory()
    story.card(21.0, linked=False)
    if how == "heartbeat":
        story.missed(920.0)
    elif how == "hang_soft":
        story.event(0, "interruption", 320.0, records=[{"rank": 1, "kind": "SOFT_TIMEOUT"}])
    elif how == "one echo":
        story.time_out(30.0, 0)
    elif how == "aborted":
        for slot in story.ranks:
            story.die(slot, 60.0)
            story.exit(slot, 60.5, -6)
    else:
        story.event(None, "worker_group_failed", 30.0, restarts_left=2, restarts_limit=3)
    assert (story.answer[0], story.answer[2]) == ("nic", "likely")
    assert "nic" not in story.diagnosis.alternatives


@pytest.mark.parametrize(
    ("how", "cause", "alternatives"),
    [
        ("exception", "app_exception", False),
        ("killed", "process_killed", True),
        ("memory", "host_oom", False),
        ("gpu", "gpu_fell_off_bus", True),
        ("told to end", "preempted", False),
        ("checkpoint", "checkpoint_write", True),
    ],
)
def test_what_a_lost_link_does_not_explain(how: str, cause: str, alternatives: bool) -> None:
    """A better explanation stands, however near the link was lost; where it may have come of it, the card is an alternative."""
    story = NicStory()
    story.card(20.5, linked=False)
    if how == "exception":
        story.caught(1, 21.0)
    elif how == "checkpoint":
        story.caught(1, 21.0, "OSError", category="checkpoint_write")
    elif how == "told to end":
        story.event(None, "signal", 21.0, signal=15, name="SIGTERM")
        story.die(1, 22.0)
    else:
        if how == "memory":
            story.event(0, "sample", 20.6, oom_kills=0)
        if how == "gpu":
            story.xid(1, 20.7, 79)
        story.die(1, 21.0)
        story.exit(1, 21.1, -9)
        if how == "memory":
            story.event(0, "sample", 21.2, oom_kills=1)
    story.time_out(21.5, 0)
    assert story.answer[0] == cause
    assert ("nic" in story.diagnosis.alternatives) == alternatives


def test_slow_growth_of_symbol_errors_blames_nothing() -> None:
    """Every optical link has some."""
    story = NicStory()
    for nth in range(10):
        story.card(21.0 + nth, symbol=8 + 100 * nth)
    story.time_out(33.0)
    assert story.answer[0] == "collective_timeout"
    assert story.cards_told() == []
    assert "nic" not in story.diagnosis.alternatives


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_link_lost_long_before_over_which_nobody_waited(comes_back: bool) -> None:
    """Steps were made after it was lost: training did without that card, whether it came back or not."""
    story = NicStory()
    story.card(30.0, linked=False)
    if comes_back:
        story.card(60.0, linked=True)
    story.steps(100.0, *story.ranks, first=11, last=40)
    story.time_out(160.0)
    assert story.answer[0] == "collective_timeout"
    assert story.cards_told() == []


def test_a_link_lost_long_after() -> None:
    """Minutes after the last sign, or after steps were made again, it explains nothing."""
    story = NicStory()
    story.time_out(25.0)
    story.card(95.0, linked=False)
    assert story.answer[0] == "collective_timeout"
    story = NicStory()
    story.time_out(25.0)
    end = story.again(26.0)
    story.card(end + 16.0, linked=False)
    assert story.answer[0] == "collective_timeout"


def test_a_link_that_stays_lost_explains_every_failure_after() -> None:
    """Restarts onto a card without a link fail for the same reason, and once it is back they do not."""
    story = NicStory()
    story.card(25.0, linked=False)
    story.time_out(80.0)
    story.begin(90.0, cycle=1)
    story.enter(91.0, *story.ranks, incarnation="second", load=10)
    story.time_out(400.0)
    assert story.pod.failures.recoveries[-1].current.diagnosis.cause == "nic"
    story.card(410.0, linked=True)
    story.begin(420.0, cycle=2)
    story.enter(421.0, *story.ranks, incarnation="third", load=10)
    story.time_out(700.0)
    assert story.pod.failures.recoveries[-1].current.diagnosis.cause == "collective_timeout"


def test_evidence_that_comes_late_appends_a_revision() -> None:
    """The look came after the incident's close: the record is written again, once, and nothing is counted twice."""
    story = NicStory()
    story.time_out(21.0)
    end = story.again(22.0, steps=3)
    story.event(0, "checkpoint", end, stage="committed", step=13)
    [before] = story.written()
    assert (before["outcome"], before["cause"], before["revision"]) == ("recovered", "collective_timeout", 0)
    counted = dict(story.pod.failures.outcomes), dict(story.pod.failures.causes)
    story.card(24.0, linked=True, link_downed=4, told=end + 5)
    [after] = story.written()
    assert (after["id"], after["cause"], after["confidence"], after["revision"]) == (before["id"], "nic", "likely", 1)
    assert story.written() == []
    assert (dict(story.pod.failures.outcomes), dict(story.pod.failures.causes)) == counted


# Several pods.


def settle(pods: list[NicStory], at: float) -> None:
    """They tell each other what they know, and all take the verdict."""
    claims = [one for story in pods for one in story.pod.claims()]
    assert len(claims) == len(pods)
    verdict = resolve(claims, {story.pod.pod_index for story in pods})
    for story in pods:
        story.pod.fold([VerdictSeen(claims[0].incident, verdict, at)])
        story.pod.advance(at)


def test_a_card_of_one_of_several_pods() -> None:
    """All pods see the same time-out; the one whose card lost its link is where it began, and it alone counts it."""
    pods = [NicStory(pod=number, pods=2) for number in range(2)]
    pods[1].card(25.0, linked=False)
    for story in pods:
        story.time_out(80.0)
    assert [story.answer[0] for story in pods] == ["peer_failure", "nic"]
    settle(pods, 120.0)
    for story in pods:
        assert (story.answer[0], story.answer[2]) == ("nic", "likely")
        assert story.record()["origin"]["pod_index"] == "1"
        story.again(130.0)
    assert pods[0].cards_told() == []
    assert [sum(story.pod.failures.causes.values()) for story in pods] == [0, 1]


def test_a_failure_that_began_on_another_pod() -> None:
    """Its own exception there explains it: the flap here, in the same minute, does not."""
    pods = [NicStory(pod=number, pods=2) for number in range(2)]
    pods[1].card(21.0, link_downed=4)
    pods[0].caught(0, 20.5)
    pods[1].time_out(22.0)
    settle(pods, 60.0)
    assert [story.answer for story in pods] == [("app_exception", 0, "confirmed")] * 2
    named = NicStory(pod=1, pods=2)
    named.card(21.0, linked=False)
    named.event(0, "interruption", 22.0, records=[{"rank": 0, "kind": "HARD_TIMEOUT"}])  # a rank of the other pod
    assert named.answer == ("hang_hard", 0, "confirmed")


def test_a_hang_of_all_pods() -> None:
    """Monitors kill everybody at the same moment: the card that was lost before tells where."""
    pods = [NicStory(pod=number, pods=2) for number in range(2)]
    pods[1].card(25.0, linked=False)
    for story in pods:
        story.missed(920.0)
    settle(pods, 960.0)
    assert [story.answer[0] for story in pods] == ["nic", "nic"]


def test_late_evidence_after_a_verdict_that_placed_nothing() -> None:
    """The pod that saw it says so; where the pods had settled on a rank with a failure of its own, it does not."""
    pods = [NicStory(pod=number, pods=2) for number in range(2)]
    for story in pods:
        story.time_out(25.0)
    settle(pods, 60.0)
    assert pods[1].answer[0] == "collective_timeout"
    pods[1].card(26.0, linked=False, told=70.0)
    assert [story.answer[0] for story in pods] == ["collective_timeout", "nic"]


# The fold.


def test_what_was_seen_outlives_the_sidecar() -> None:
    """A link lost while no sidecar ran is noticed by the next one, once; counters go on, and nothing counts twice."""
    story = NicStory()
    story.card(15.0, link_downed=4)
    shown = story.pod.nics.shown()
    assert shown["mlx5_1", "link_downed"] == 4
    assert shown["mlx5_0", "symbol"] == 7
    again = Pod("story", "0")
    recall(again, json.loads(json.dumps(encoder().encode(story.pod))))
    again.set_clock(0.0, story.wall)
    story.pod = again
    story.look(20.0)
    assert story.pod.nics.shown() == shown
    story.card(25.0, linked=False, link_downed=6)
    story.look(26.0)
    assert story.pod.nics.shown() == shown | {("mlx5_1", "link_downed"): 6}
    assert [one.kind for one in story.pod.nics.recent] == ["flapped", "down"]
    story.time_out(30.0)
    assert story.answer[0] == "nic"


def test_another_machine_is_no_lost_link() -> None:
    """The pod moves: cards of the same name are other cards, with counters of their own, and those left behind are no evidence."""
    nics = Nics()
    nics.fold(
        NicsSeen("one", tuple(PortSeen(f"mlx5_{n}", "1", True, (("link_downed", 5),)) for n in range(3)), 1.0, 1.0)
    )
    there = (
        PortSeen("mlx5_0", "1", False, (("link_downed", 200),)),
        PortSeen("mlx5_1", "1", True, (("link_downed", 0),)),
    )
    assert nics.fold(NicsSeen("two", there, 2.0, 2.0)) == []
    assert nics.shown() == {("mlx5_0", "link_downed"): 5, ("mlx5_1", "link_downed"): 5}
    assert nics.linked("one") == []
    assert nics.linked("two") == [("mlx5_0", "1"), ("mlx5_1", "1")]
    (found,) = nics.fold(NicsSeen("two", (there[0], PortSeen("mlx5_1", "1", True, (("link_downed", 1),))), 3.0, 3.0))
    assert (found.device, found.kind) == ("mlx5_1", "flapped")


LOOKS = st.lists(
    st.tuples(
        st.sampled_from(["one", "one", "one", "two"]),
        st.lists(
            st.builds(
                PortSeen,
                st.sampled_from([f"d{n}" for n in range(4)]),
                st.sampled_from(["1", "2"]),
                st.booleans(),
                st.dictionaries(st.sampled_from(["link_downed", "symbol"]), st.integers(0, 1 << 64)).map(
                    lambda found: tuple(sorted(found.items()))
                ),
            ),
            max_size=6,
            unique_by=lambda port: (port.device, port.number),
        ),
    ),
    max_size=8,
)


@settings(max_examples=40)
@given(LOOKS)
def test_no_sum_of_errors_steps_back(looks: Any) -> None:
    """Whatever cards come, go and begin anew, what is kept only rises, and the sum of all is at least that of each."""
    nics, before = Nics(), dict[tuple[str, str], int]()
    for number, (boot, ports) in enumerate(looks):
        nics.fold(NicsSeen(boot, tuple(ports), float(number), float(number)))
        for pair, count in nics.errors.items():
            assert count >= before.get(pair, 0)
            assert count <= nics.errors["all", pair[1]]
        before = dict(nics.errors)


def test_cards_without_end_do_not_fill_the_memory() -> None:
    """Neither names nor flaps."""
    story = NicStory()
    for nth in range(400):
        ports = tuple(PortSeen(f"x{nth}-{n}", "1", True, (("link_downed", nth),)) for n in range(10))
        story.pod.fold([NicsSeen("a start", ports, 5.0, 5.0)])
    assert len(story.pod.nics.ports) <= MOST_PORTS
    assert len(story.pod.nics.errors) <= 4 * (MOST_PORTS + 1)
    for nth in range(2000):
        story.card(21.0 + nth / 1000, link_downed=4 + nth)
    story.time_out(25.0)
    for nth in range(2000):
        story.card(25.0 + nth / 1000, link_downed=10_000 + 7 * nth * nth)
    assert len(story.pod.nics.recent) <= MOST_KEPT
    assert len(story.pod.failures.recoveries[-1].current.nics) <= MOST_NICS
    assert len(story.cards_told()) <= MOST_NICS


def test_looks_move_with_the_clock() -> None:
    """After a reboot the fold's time goes on: what is read is put on it as all else is."""
    seen = NicsSeen("two", (), 5.0, 1000.0)
    assert moved(seen, 3_000_000_000) == NicsSeen("two", (), 8.0, 1000.0)
