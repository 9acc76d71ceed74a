"""How answers are drafted: what a configuration may say, and what says nothing is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from slipstream_api.speculator import SpeculatorSpec

_DRAFT = {"path": "/models/small"}


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"method": "model"}, "needs draft"),
        ({"method": "edit", "draft": _DRAFT}, "does not use draft"),
        ({"sampling": "probabilistic"}, "needs draft"),
        ({"syntheticAcceptance": {"lengthMilli": 2500}, "draft": _DRAFT}, "leave draft out"),
        ({"syntheticAcceptance": {"lengthMilli": 999}}, "1000"),
        ({"maxDraftTokens": 65}, "64"),
        ({"suffix": {"maxTokensPerTenant": 3}}, "4"),
        ({"suffix": {"maxTenants": 0}}, "1"),
        ({"method": "eagle3"}, "auto"),
        ({"more": 1}, "Extra inputs"),
    ],
    ids=str,
)
def test_what_would_be_ignored_or_cannot_be_is_refused(document: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        SpeculatorSpec.model_validate(document)


@pytest.mark.parametrize(
    ("document", "is_drafting"),
    [
        ({}, True),
        ({"method": "none"}, False),
        ({"maxDraftTokens": 0}, False),
        ({"method": "model", "draft": _DRAFT, "sampling": "probabilistic"}, True),
        ({"suffix": {"maxTokensPerTenant": 0}}, True),
    ],
    ids=str,
)
def test_none_is_one_of_the_ways(document: dict[str, Any], *, is_drafting: bool) -> None:
    assert SpeculatorSpec.model_validate(document).is_drafting is is_drafting
