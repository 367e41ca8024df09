"""Models that are not proven are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from meshnet_node.errors import FamilyError
from meshnet_node.model.families import PROVEN, check_family


@pytest.mark.parametrize("family", PROVEN)
def test_proven_families_pass(family: str) -> None:
    check_family({"model_type": family, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt2"}, "'gpt2' are not served"),
        ({}, "None are not served"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"model_type": "llama", "rope_scaling": {"type": "longrope"}}, "'longrope'"),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "'longrope'"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}, "quantised by 'mxfp4'"),
    ],
)
def test_others_are_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(FamilyError, match=says):
        check_family(config)


def test_rotary_kinds_that_do_not_depend_on_the_length_pass() -> None:
    check_family({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})
