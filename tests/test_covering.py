"""Those combinations that are tested hold whatever all choices but one are."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests import covering as covering_module
from tests.covering import covered, covering


@pytest.mark.parametrize(
    ("levels", "of"), [((2, 2), 2), ((2, 3, 6), 2), ((5, 2, 4, 3), 2), ((4, 7), 4), ((6, 5, 4), 4)]
)
def test_of_n_choices_any_but_one_meet(
    levels: tuple[int, ...], of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covering_module, "THOROUGH", False)
    every = list(product(*map(range, levels)))
    chosen = [row for row in every if covered(*row, of=of)]
    assert len(chosen) <= len(every) / of + 1
    for some in combinations(range(len(levels)), len(levels) - 1):
        assert {tuple(row[i] for i in some) for row in chosen} == set(
            product(*(range(levels[i]) for i in some))
        )


def test_choices_are_numbered_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering_module, "THOROUGH", False)
    assert list(covering("ab", "xyz")) == [("a", "x"), ("a", "z"), ("b", "y")]


def test_a_thorough_run_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering_module, "THOROUGH", True)
    assert all(covered(*row) for row in product(range(3), repeat=3))
    assert list(covering("ab", "xyz")) == list(product("ab", "xyz"))
