"""Manifests, receipts and names: everything is read back, and nothing else is believed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway_trainer.manifest import (
    CheckpointError,
    Manifest,
    ShardReceipt,
    encode_manifest,
    parse_folder,
    parse_manifest,
    save_folder,
    shard_file,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MANIFEST = Manifest(7, 1, "ab", (ShardReceipt(0, shard_file(0, 1), 5, "0" * 64),), {"seed": 1}, 12.5, 3)


@given(st.sampled_from(sorted(json.loads(encode_manifest(MANIFEST)))), json_values)
@example("extra", {"loss": math.inf})
def test_a_manifest_with_any_field_replaced_is_read_or_refused(field: str, value: object) -> None:
    """No value in any field makes the parser fail in another way than by saying so."""
    table = json.loads(encode_manifest(MANIFEST)) | {field: value}
    try:
        manifest = parse_manifest(json.dumps(table).encode(), 7, "ab")
    except CheckpointError:
        return
    assert json.loads(encode_manifest(manifest)) == table


@given(st.binary(max_size=200))
def test_any_bytes_are_no_manifest(content: bytes) -> None:
    """Random content is refused in words."""
    with pytest.raises(CheckpointError):
        parse_manifest(content, 7, "ab")


def test_names_are_read_back() -> None:
    """What `save_folder` names, `parse_folder` knows; everything else is none of ours."""
    assert parse_folder(save_folder(Path("/x"), 123_456_789_012, "0a1b2c3d").name) == (
        123_456_789_012,
        "0a1b2c3d",
    )
    for name in (
        "step-1-ab",
        "step-00000001",
        "step-00000001-AB",
        "step-00000001-ab/..",
        "step-" + "\u0660" * 8 + "-ab",
        ".trash-x",
    ):
        assert parse_folder(name) is None
    with pytest.raises(ValueError, match="a save needs"):
        save_folder(Path("/x"), 1, "../up")
