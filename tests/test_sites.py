"""The benchmark site by site, for pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats
from test_headtohead import BASE, three

from hetfl_book.headtohead import ranking, sites
from hetfl_book.headtohead.entries import ALONE
from hetfl_core.records import RunRecord

BETTER = [[0.72, 0.82, 0.1], [0.64, 0.84, 0.9], [0.76, 0.76, 0.5]]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records of three clients and three splits: alone, and FedProto with the control that exchanges nothing."""
    found = {
        "headtohead/heart-all": [*three(ALONE, BASE), *three("FedProto", BETTER)],
        "headtohead/heart-all-apart": three("FedProto", BASE, control=True),
    }

    def load(experiment: str, **_: Any) -> list[RunRecord]:
        return found[experiment]

    monkeypatch.setattr(sites.records, "load", load)
    sites._reached.cache_clear()
    yield
    sites._reached.cache_clear()


def test_what_was_reached_is_in_per_cent_by_method_client_and_seed() -> None:
    found = sites.reached("heart")
    assert {*found.index} == {(m, c) for m in (ALONE, "FedProto") for c in "abc"}
    assert found.loc["FedProto"].index.tolist() == ["a", "b", "c"]
    assert found.loc["FedProto", "a"].tolist() == pytest.approx([72, 64, 76])
    assert sites.reached("heart", apart=True).loc["FedProto", "a"].tolist() == pytest.approx([70, 60, 70])
    found[:] = 0
    assert sites.reached("heart").to_numpy().any(), "a copy"


@pytest.mark.parametrize("base", [ALONE, sites.NOTHING])
def test_a_gain_has_an_interval_that_knows_of_overlapping_splits(base: str) -> None:
    found = sites.gain("heart", "FedProto", base, "a")
    half = stats.t.ppf(0.975, 2) * np.std([2, 4, 6], ddof=1) * math.sqrt(1 / 3 + 0.4 / 0.6)
    assert (found.mean, found.high - found.mean) == pytest.approx((4, half))
    known = ranking.client_gains(sites.records.load("headtohead/heart-all"), base=ALONE)
    assert known.loc["heart", "all", "FedProto", "a"][["gain", "low"]].tolist() == pytest.approx([4, found.low])


def test_a_table_has_levels_in_its_first_row_and_gains_below() -> None:
    """Splits that differ by 2, 4 and 6 points: 4 ± 4.303 · 2 · √(1/3 + 2/3)."""
    table = sites.beside("heart", {"prototypes": "FedProto"}, ALONE)
    assert table.loc[ALONE].tolist() == ["66.7", "76.7", "50.0"]
    assert table.loc["prototypes"].tolist() == ["+4.0 ±\u00a08.6", "+4.0 ±\u00a08.6", "0.0 ±\u00a00.0"]


def test_no_such_federation() -> None:
    with pytest.raises(ValueError, match="federation must be one of"):
        sites.reached("hearts")
