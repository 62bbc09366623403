"""Tests for matching required capabilities with the capabilities that a worker offers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.workers import missing_capabilities, require_capabilities
from flowfabric.engine import Refused

TOKENS = st.sets(st.sampled_from(["arm", "gpu", "GPU", "eu", "cuda>=12"]))


@given(TOKENS, TOKENS)
def test_missing_returns_required_capabilities_that_are_not_offered(required: set[str], offered: set[str]) -> None:
    assert missing_capabilities(required, offered) == tuple(sorted(required - offered))


@pytest.mark.parametrize(("required", "offered"), [([], []), ([], ["gpu"]), (["gpu"], ["gpu"]), (["a"], ["b", "a"])])
def test_worker_with_all_capabilities_is_accepted(required: list[str], offered: list[str]) -> None:
    require_capabilities(required, offered)
    assert missing_capabilities(required, offered) == ()


def test_mismatch_error_lists_missing_capabilities_in_order() -> None:
    with pytest.raises(Refused) as refused:
        require_capabilities(["gpu", "arm", "eu"], ["eu", "x86"])
    assert refused.value.code == "capability_mismatch"
    assert refused.value.fields["missing"] == ("arm", "gpu")
    assert "arm, gpu" in refused.value.message


def test_capabilities_match_exactly() -> None:
    assert missing_capabilities(["gpu"], ["GPU"]) == ("gpu",)
    assert missing_capabilities(["é"], ["e\u0301"]) == ("é",)
