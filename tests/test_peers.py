"""gpupool against other implementations: random cases, and every known difference by name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.bounds import gamma
from gpupool.peers import OnnxRuntime, missing
from tests import peers, tolerance

RANDOM = [
    pytest.param(peer, op, id=f"{peer.name}-{op}")
    for peer in peers.PEERS.values()
    for op in peer.dtypes
]


def require(peer: peers.Peer) -> None:
    reason = missing(peer)
    if reason:
        pytest.skip(f"{peer.name} is an optional peer: {reason}")


@pytest.mark.no_cover
@pytest.mark.parametrize(("peer", "op"), RANDOM)
@given(data=st.data())
def test_gpupool_equals_peer(peer: peers.Peer, op: str, data: st.DataObject) -> None:
    require(peer)
    case = peers.draw_case(lambda low, high: data.draw(st.integers(low, high)), peer, op)
    kind, what = peers.verdict(peer, case)
    assert kind != "differs", what


@pytest.mark.parametrize("row", peers.KNOWN, ids=lambda row: f"{row.peer}: {row.name}")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference divides by zero and overflows
def test_known_difference_still_exists(row: peers.Known) -> None:
    peer = peers.PEERS[row.peer]
    require(peer)
    mine, theirs = peers.outcome(peers.ours, row.example), peers.outcome(peer, row.example)
    assert peers.difference(row.example, mine, theirs), f"{row.peer} agrees now: remove the row"
    if row.right is None:
        assert mine is None
        return
    assert mine is not None
    for output, right in zip(mine, row.right, strict=True):
        np.testing.assert_allclose(output.ravel(), right, rtol=1e-6)


@pytest.mark.parametrize(
    "row",
    [row for row in peers.KNOWN if row.touches is not peers.not_drawn],
    ids=lambda row: f"{row.peer}: {row.name}",
)
def test_known_difference_recognises_its_example(row: peers.Known) -> None:
    assert row.touches(row.example)


def test_known_differences_have_unique_names() -> None:
    names = [(row.peer, row.name) for row in peers.KNOWN]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["onnxruntime", "torch"])
def test_few_random_cases_need_an_explanation(name: str) -> None:
    peer = peers.PEERS[name]
    require(peer)
    draw = random.Random(1).randint
    kinds = [peers.verdict(peer, peers.draw_any(draw, peer))[0] for _ in range(400)]
    assert kinds.count("equal") >= 300


def test_command_counts_the_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--n", "200", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("200 random cases, gpupool against onnxruntime: ")
    assert ", 0 unexplained" in printed.splitlines()[0]


def test_command_reports_what_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def negated(self: Any, case: peers.Case) -> peers.Outputs:
        return tuple(-y for y in run(self, case))

    run = OnnxRuntime.run
    monkeypatch.setattr(OnnxRuntime, "run", negated)
    monkeypatch.setattr(OnnxRuntime, "dtypes", {"MaxPool": ("float64",)})
    assert peers.main(["--n", "20"]) == 1
    assert "differs: MaxPool(float64[" in capsys.readouterr().out


# The comparison itself


def test_maxima_are_compared_bit_for_bit() -> None:
    case = peers.Case("MaxPool", (np.ones((1, 1, 2), np.float32),), {"kernel_shape": [2]})
    one = np.ones((1, 1, 1), np.float32)
    assert peers.difference(case, (one,), (one,)) is None
    assert peers.difference(case, (one,), (np.nextafter(one, np.float32(2)),))
    assert peers.difference(case, (-0.0 * one,), (0.0 * one,)) is None
    assert peers.difference(case, (np.nan * one,), (np.nan * one,)) is None
    assert peers.difference(case, (np.nan * one,), (one,))


def test_sums_are_compared_within_their_bound() -> None:
    x = np.full((1, 1, 4), 3, np.float32)
    case = peers.Case("AveragePool", (x,), {"kernel_shape": [4]})
    mean = np.full((1, 1, 1), 3, np.float32)
    bound = 2 * float(gamma(5, tolerance.unit(x.dtype))) * 3
    within, beyond = np.float32(0.9 * bound), np.float32(1.5 * bound)
    assert peers.difference(case, (mean,), (mean + within,)) is None
    assert peers.difference(case, (mean,), (mean + beyond,))


def test_shapes_dtypes_and_refusals_are_compared() -> None:
    case = peers.Case("MaxPool", (np.ones((1, 1, 2), np.float32),), {"kernel_shape": [2]})
    one = np.ones((1, 1, 1), np.float32)
    assert peers.difference(case, (one,), (one[0],))
    assert peers.difference(case, (one,), (one.astype(np.float64),))
    assert peers.difference(case, (one,), None) == "only the peer refuses"
    assert peers.difference(case, None, (one,)) == "only gpupool refuses"
    assert peers.difference(case, None, None) is None
