"""The API is documented field by field, and the document is what the code says."""

from __future__ import annotations

import re

import api_fields
import pytest
import readme

from headway_exporter.page.model import API_VERSION

TEXT = readme.README.read_text()
PLAIN = """
v step steps slot rank ranks n limit total remaining depth attempts loss requests committed failed aborted
failed_since_commit origin_rank durable_step high_water_step total_steps interval_steps steps_lost pods_expected
pods_heard training_goodput infrastructure_goodput uncorrected_errors xids restarts incidents
"""
"""Numbers without a unit."""


@pytest.mark.parametrize("one", api_fields.objects(), ids=lambda one: one.name)
def test_every_field_of_the_api_is_documented(one: api_fields.Object) -> None:
    """No field without a sentence on what it is."""
    assert one.words
    assert one.fields
    assert [field.name for field in one.fields if not field.words.endswith((".", "`."))] == []


def test_units_are_in_the_names() -> None:
    """A number whose name does not tell its unit is a count, a step or a share."""
    plain = set(PLAIN.split())
    units = ("_seconds", "_wall", "_bytes", "_ratio", "_celsius", "_watts", "wall")
    unknown = {
        field.name
        for one in api_fields.objects()
        for field in one.fields
        if re.search(r"\b(int|float)\b", field.kind) and not field.name.endswith(units)
    }
    assert unknown - plain == set()


def test_the_document_is_what_the_code_makes() -> None:
    """`make docs` was run after the last change."""
    assert api_fields.DOCUMENT.read_text() == api_fields.document()
    assert f"/api/v{API_VERSION}/" in api_fields.document()


def test_the_readme_leads_there() -> None:
    """Whoever looks for the API finds its paths, and the document with its fields."""
    for path in ("/api/v1/status", "/api/v1/incidents", "/api/v1/timeline"):
        assert f"`{path}" in TEXT
    assert "(exporter/API.md)" in TEXT
