"""The undisturbed run that every broken one must equal in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import harness
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[dict[str, object]]]:
    """Final loss and weights of the run as it should be, two ranks; made once, when first asked for."""
    made: list[list[dict[str, object]]] = []

    def results() -> list[dict[str, object]]:
        if not made:
            output = tmp_path_factory.mktemp("undisturbed")
            more = ("--checkpoint.mode=off", "--resilience.in-process=false")
            command = harness.torchrun(harness.trainer_options(output, steps=harness.STEPS, more=more))
            code, log = harness.run_unobserved(command, output, {"HEADWAY_DIR": str(output / "journal")})
            assert code == 0, log
            made.append(harness.report.read_results(output))
        return made[0]

    return results
