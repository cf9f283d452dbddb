"""The committed dashboards, and what Grafana does with the variables in their queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

FOLDER: Final = Path(__file__).parents[2] / "dashboards" / "json"
NAMES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    """One of them."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return document


def unfolded(document: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels, those of closed rows too."""
    return [one for panel in document["panels"] for one in (panel, *panel.get("panels", []))]


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show data."""
    return [one for one in unfolded(document) if one["type"] not in ("row", "text")]


def queries(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every panel's and annotation's: where, and the JSON that has `expr`."""
    for panel in panels(document):
        for target in panel["targets"]:
            yield f"{panel['title']} / {target['refId']}", target
    for note in document["annotations"]["list"]:
        yield note["name"], note


def filled(expr: str, run: str = "demo", window: str = "600s", rate: str = "60s") -> str:
    """The expression with Grafana's variables replaced, all runs and pods chosen."""
    values = {"run": run, "runs": ".*", "pod": ".*", "__range": window, "__rate_interval": rate}
    found = re.sub(r"\$([a-z_]\w*)", lambda name: values[name.group(1)], expr)
    assert not re.search(r"\$\D", found)  # $1 is label_replace's
    return found


def answered(folder: Path, series: Mapping[str, str], expr: str, expected: Mapping[str, float], at: str = "0s") -> None:
    """Lets promtool ask: series by their text, with values every minute; what is expected, by its labels."""
    asked = {
        "expr": expr,
        "eval_time": at,
        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
    }
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": [asked]}
    (folder / "tests.yaml").write_text(json.dumps({"rule_files": [], "tests": [test]}))
    command = ["promtool", "test", "rules", "tests.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
