"""Tests for the URLs that carry a token."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric.engine import InvalidRequest, Secret
from flowfabric.runtime.signals import callback_url, link


@pytest.mark.parametrize("base", ["https://shop.example/ff", "https://shop.example/ff/"])
def test_urls_start_with_the_base_and_end_with_the_token(base: str) -> None:
    assert link(base, "ffw1.k.x.y") == "https://shop.example/ff/ffw1.k.x.y"
    assert callback_url(base, Secret("ffw1.k.x.y")) == "https://shop.example/ff/callback/ffw1.k.x.y"


def test_base_url_may_be_only_a_host() -> None:
    assert link("http://localhost:8000", "t") == "http://localhost:8000/t"


@pytest.mark.parametrize(
    "base",
    [
        "",
        "shop.example/ff",
        "/ff",
        "ftp://shop.example",
        "https://",
        "https://shop.example?x",
        "https://shop.example#x",
        "https://shop example",
        "https://[::1",
        "javascript:alert(1)",
        "https://shop.example/\n",
        3,
        None,
        b"https://x",
    ],
)
def test_invalid_base_url_is_rejected(base: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        link(base, "t")
    assert refused.value.code == "invalid_url"
