"""A worker may run an execution exactly when it offers everything that is required."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.capabilities import missing, require
from flowfabric.engine import Refused

TOKENS = st.sets(st.sampled_from(["arm", "gpu", "GPU", "eu", "cuda>=12"]))


@given(TOKENS, TOKENS)
def test_what_is_missing_is_what_is_required_and_not_offered(required: set[str], offered: set[str]) -> None:
    assert missing(required, offered) == tuple(sorted(required - offered))


@pytest.mark.parametrize(("required", "offered"), [([], []), ([], ["gpu"]), (["gpu"], ["gpu"]), (["a"], ["b", "a"])])
def test_a_worker_that_offers_enough_is_let_through(required: list[str], offered: list[str]) -> None:
    require(required, offered)
    assert missing(required, offered) == ()


def test_a_mismatch_is_refused_with_the_sorted_list_of_what_is_missing() -> None:
    with pytest.raises(Refused) as refused:
        require(["gpu", "arm", "eu"], ["eu", "x86"])
    assert refused.value.code == "capability_mismatch"
    assert refused.value.fields["missing"] == ("arm", "gpu")
    assert "arm, gpu" in refused.value.message


def test_tokens_match_by_their_exact_letters() -> None:
    assert missing(["gpu"], ["GPU"]) == ("gpu",)
    assert missing(["é"], ["e\u0301"]) == ("é",)
