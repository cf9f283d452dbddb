"""Numbers that stand for words, and the colours that mean the same in every dashboard."""

from __future__ import annotations

from typing import Final

from headway_dashboards.model import Value

GOOD: Final = "#56A64B"
NOTICE: Final = "#F2CC0C"
WARNING: Final = "#FA6400"
BAD: Final = "#C4162A"
CALM: Final = "#3274D9"
FAINT: Final = "#8E8E8E"
NOTHING: Final = "rgba(128, 128, 128, 0.25)"
"""Where there is nothing to see, on light and on dark."""

STATE_COLOURS: Final = {
    "finished": "#6E7A87",
    "standby": "#4B5563",
    "productive": GOOD,
    "other": "#B8BDC4",
    "data_wait": "#A352CC",
    "eval": "#CA95E5",
    "checkpoint_save": CALM,
    "checkpoint_load": "#8AB8FF",
    "init": "#B5A36A",
    "replay": NOTICE,
    "restart": WARNING,
    "detect": "#FF7383",
    "down": BAD,
}
"""From the best to the worst: of several pods the worst is the run's."""

STATES: Final = {number: Value(name, colour) for number, (name, colour) in enumerate(STATE_COLOURS.items(), 1)}

INCIDENT: Final = {0: Value("none", GOOD), 1: Value("open", WARNING), 2: Value("recurring", BAD)}
YES_IS_BAD: Final = {0: Value("no", NOTHING), 1: Value("yes", BAD)}
HELD_DOWN: Final = {0: Value("no", NOTHING), 1: Value("power limit", NOTICE), 2: Value("heat or hardware", BAD)}
SEVERITIES: Final = {1: Value("critical", BAD), 2: Value("warning", WARNING), 3: Value("info", GOOD)}
MEMORY_ROWS: Final = {0: Value("none", NOTHING), 1: Value("reset due", WARNING), 2: Value("no spare left", BAD)}
RECOVERY_ACTION: Final = {
    0: Value("nothing", NOTHING),
    1: Value("a reset", BAD),
    2: Value("a reboot", BAD),
    3: Value("peers drained", WARNING),
    4: Value("drain, reset", BAD),
}
"""`headway_gpu_recovery_action`; the driver's manual has what each means."""
ANSWERS: Final = {0: Value("no", BAD), 1: Value("yes", GOOD)}
WORKS: Final = {0: Value("failed", BAD), 1: Value("works", GOOD)}
UP: Final = {0: Value("down", BAD), 1: Value("up", GOOD)}

UNMEASURED: Final = "this sidecar does not measure it"
NO_ERRORS: Final = "none, or no GPU is measured"
"""Of what is shown only when it happens: that there is nothing to see is good news."""
