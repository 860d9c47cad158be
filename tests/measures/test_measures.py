"""Measures: closed forms, the NumPy way, contracts over the table, the user's own."""

import inspect
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dropscope import measures
from dropscope.measures import DEFAULT, SEGMENTATION, TABLE, Measure, histograms, resolve
from dropscope.measures.statistics.running import PassStatistics, from_passes
from dropscope.measures.statistics.sums import CHEAP, STATISTICS
from support.errors import refused


def some_passes(passes=50, n=40, classes=4, spatial=(), seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, n, classes, *spatial, generator=generator) * 2
    return (centre + torch.randn(passes, n, classes, *spatial, generator=generator) * sharpness).softmax(2)


def numpy_measures(samples, plain):
    """Each definition written out on float64 arrays [passes, n, classes]."""
    p, ref = samples.double().numpy(), plain.double().numpy()
    passes, n, classes = p.shape
    mean = p.mean(0)
    entropy = scipy.stats.entropy(mean, axis=-1)
    expected = scipy.stats.entropy(p, axis=-1).mean(0)
    bins = np.minimum((samples.numpy() * np.float32(100)).astype(int), 99)
    f = np.zeros((n, classes, 100))
    for t in range(passes):
        for c in range(classes):
            f[np.arange(n), c, bins[t, :, c]] += 1 / passes
    top = np.argsort(-mean, -1, kind="stable")[:, :2]
    f1, f2 = f[np.arange(n), top[:, 0]], f[np.arange(n), top[:, 1]]
    g1, g2 = (np.where(x == 0, 1e-7, x) for x in (f1, f2))
    votes = np.stack([(p.argmax(-1) == c).mean(0) for c in range(classes)], -1)
    c = ref.argmax(-1)
    ordered = np.sort(mean, -1)
    at = np.take_along_axis(p, np.broadcast_to(c[None, :, None], (passes, n, 1)), -1)[..., 0]
    spread = p.var(0, ddof=1)
    corrected = entropy - expected + (spread / mean).sum(-1) / (2 * passes)
    return {
        "variation_predicted": ((at - ref[np.arange(n), c]) ** 2).mean(0),
        "variation_max": p.max(-1).var(0),
        "predictive_entropy": entropy,
        "expected_entropy": expected,
        "bald": entropy - expected,
        "mutual_information": entropy - expected,
        "bald_corrected": np.minimum(corrected, math.log(classes) - expected),
        "averaged_variance": p.var(0).mean(-1),
        "averaged_std": p.std(0).mean(-1),
        "averaged_entropy": scipy.stats.entropy(f, axis=-1).mean(-1),
        "bhattacharyya": np.sqrt(f1 * f2).sum(-1),
        "kullback_leibler": -(scipy.stats.entropy(g1, g2, axis=-1) + scipy.stats.entropy(g2, g1, axis=-1)),
        "variation_ratio": 1 - votes.max(-1),
        "max_probability": 1 - ordered[:, -1],
        "margin": 1 - (ordered[:, -1] - ordered[:, -2]),
    }


def call(name, samples, plain):
    return TABLE[name].function(samples, plain=plain)


def test_two_opposite_passes_have_closed_forms():
    passes = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    plain = torch.tensor([[1.0, 0.0]])
    expected = {
        "variation_predicted": 0.5,
        "variation_max": 0.0,
        "predictive_entropy": math.log(2),
        "expected_entropy": 0.0,
        "bald": math.log(2),
        "mutual_information": math.log(2),
        "bald_corrected": math.log(2),
        "averaged_variance": 0.25,
        "averaged_std": 0.5,
        "averaged_entropy": math.log(2),
        "bhattacharyya": 1.0,
        "kullback_leibler": 0.0,
        "variation_ratio": 0.5,
        "max_probability": 0.5,
        "margin": 1.0,
    }
    assert set(expected) == set(TABLE)
    for name, value in expected.items():
        assert call(name, passes, plain).item() == pytest.approx(value, abs=1e-7), name


def test_certain_passes_have_the_lowest_value_of_each():
    passes = torch.tensor([[[1.0, 0.0, 0.0]]]).expand(5, 1, 3)
    for name in TABLE:
        lowest = 0.0
        if name == "kullback_leibler":  # two bins, disjoint, each filled up to the floor
            lowest = -2 * (1 - 1e-7) / (1 + 99e-7) * math.log(1e7)
        assert call(name, passes, passes[0]).item() == pytest.approx(lowest, rel=1e-6, abs=0), name


@pytest.mark.parametrize("seed", [0, 1])
def test_every_measure_equals_numpy(seed):
    samples, plain = some_passes(seed=seed), some_passes(1, seed=seed + 7)[0]
    expected = numpy_measures(samples, plain)
    assert set(expected) == set(TABLE)
    for name, value in expected.items():
        got = call(name, samples, plain)
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), value, atol=2e-6 if name == "kullback_leibler" else 1e-6, err_msg=name)


@pytest.mark.parametrize("name", list(TABLE))
def test_dense_outputs_equal_their_voxels_one_by_one(name):
    samples, plain = some_passes(n=3, spatial=(2, 5)), some_passes(1, n=3, spatial=(2, 5), seed=3)[0]
    dense = call(name, samples, plain)
    assert dense.shape == (3, 2, 5)
    flat = call(name, samples.movedim(2, -1).flatten(1, 3), plain.movedim(1, -1).flatten(0, 2))
    torch.testing.assert_close(dense.flatten(), flat, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", list(TABLE))
def test_order_of_passes_and_of_classes_does_not_matter(name):
    samples, plain = some_passes(), some_passes(1, seed=3)[0]
    expected = call(name, samples, plain)
    torch.testing.assert_close(call(name, samples.flip(0), plain), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(call(name, samples.flip(2), plain.flip(1)), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [n for n in TABLE if n != "bald_corrected"])
def test_one_pass_is_enough(name):
    samples = some_passes(1)
    assert bool(call(name, samples, samples[0]).isfinite().all())


@pytest.mark.parametrize("name", list(TABLE))
def test_statistics_and_stored_passes_give_the_same(name):
    samples, plain = some_passes(), some_passes(1, seed=3)[0]
    kept = PassStatistics(TABLE[name].needs, plain=plain)
    for p in samples:
        kept.update(p)
    torch.testing.assert_close(TABLE[name](kept), call(name, samples, plain), atol=1e-7, rtol=0)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 6), st.floats(0.0, 60.0))
@settings(max_examples=40, deadline=None)
def test_ranges_hold(seed, passes, classes, sharpness):
    samples = some_passes(passes, 5, classes, seed=seed, sharpness=sharpness)
    plain = samples[0]
    value = {name: call(name, samples, plain) for name in TABLE if passes > 1 or name != "bald_corrected"}
    top = math.log(classes) + 1e-6
    highest = {"variation_predicted": 1, "variation_max": 0.25, "averaged_variance": 0.25, "averaged_std": 0.5}
    highest |= {"bhattacharyya": 1, "margin": 1, "variation_ratio": 1 - 1 / classes, "max_probability": 1 - 1 / classes}
    highest |= {"averaged_entropy": math.log(min(passes, 100)), "kullback_leibler": 0}
    for name, u in value.items():
        assert bool(u.isfinite().all()), name
        assert float(u.max()) <= highest.get(name, top) + 1e-6, name
        assert float(u.min()) >= (-33 if name == "kullback_leibler" else 0), name
    assert bool((value["bald"] <= value["predictive_entropy"]).all())
    assert bool((value["expected_entropy"] <= value["predictive_entropy"] + 1e-6).all())


def test_passes_without_noise_have_no_bald_and_no_variance():
    one = some_passes(1, n=500)
    samples = one.expand(100, -1, -1)
    for name in (
        "bald",
        "variation_max",
        "variation_predicted",
        "averaged_variance",
        "averaged_std",
        "variation_ratio",
    ):
        assert float(call(name, samples, one[0]).abs().max()) == 0, name


@pytest.mark.parametrize("concentration", [0.3, 1.0, 5.0])
def test_bald_corrected_has_less_bias(concentration):
    alpha = np.array([concentration, 2 * concentration, 3 * concentration])
    generator = np.random.default_rng(0)
    draw = torch.from_numpy(generator.dirichlet(alpha, size=(10, 20000)))
    total = scipy.stats.entropy(alpha / alpha.sum())
    a0 = alpha.sum()
    expected = scipy.special.digamma(a0 + 1) - (alpha / a0 * scipy.special.digamma(alpha + 1)).sum()
    true = total - expected
    plain_bias = float(measures.bald(draw).mean()) - true
    corrected_bias = float(measures.bald_corrected(draw).mean()) - true
    assert plain_bias < -0.05 * true  # about −true/T or more
    assert abs(corrected_bias) < 0.25 * abs(plain_bias)


def test_bald_corrected_needs_two_passes():
    with refused("passes"):
        measures.bald_corrected(some_passes(1))


def test_ranks_agree_with_the_conventions_of_monte_carlo_analysis():
    """The authors' package (0.0.1; needs numba) written out: entropy / bins, BC on mass 1/2, KL halved."""
    samples = some_passes(passes=50, n=60)
    p, mean = samples.numpy().astype(np.float64), samples.mean(0).numpy()
    for u, row in zip(measures.averaged_entropy(samples).tolist(), p.transpose(1, 2, 0), strict=True):
        # np.histogram and ⌊100p⌋ part where a value lies on the edge of a bin.
        f = [np.histogram(np.float32(c), bins=100, range=(0, 1))[0] / 50 for c in row]
        assert u == pytest.approx(100 * np.mean([-(x[x > 0] * np.log(x[x > 0])).sum() / 100 for x in f]), abs=0.04)
    bc, kl = measures.bhattacharyya(samples).numpy(), measures.kullback_leibler(samples).numpy()
    theirs_bc, theirs_kl = [], []
    for i in range(60):
        one, two = np.argsort(-mean[i])[:2]
        f, g = (
            np.bincount(np.minimum((samples[:, i, c].numpy() * np.float32(100)).astype(int), 99), minlength=100)
            for c in (one, two)
        )
        theirs_bc.append(np.sqrt((f / 100) * (g / 100)).sum())
        f, g = (np.where(x == 0, 1e-7, x / 50) for x in (f, g))
        theirs_kl.append(-0.5 * (scipy.stats.entropy(f, g) + scipy.stats.entropy(g, f)))
    np.testing.assert_allclose(2 * np.array(theirs_bc), bc, atol=1e-6)
    np.testing.assert_allclose(2 * np.array(theirs_kl), kl, atol=1e-5)


def test_the_floor_of_kullback_leibler_matters():
    samples = some_passes(sharpness=0.5)
    low, high = (measures.kullback_leibler(samples, floor=floor) for floor in (1e-10, 1e-3))
    assert bool((low <= high + 1e-6).all())
    assert float((low - high).abs().max()) > 1
    with refused("floor"):
        measures.kullback_leibler(samples, floor=0.0)


def test_slabs_do_not_change_histogram_measures(monkeypatch):
    samples = some_passes()
    expected = [TABLE[name].function(samples) for name in SEGMENTATION[1:]]
    monkeypatch.setattr(histograms, "_SLAB", 1000)
    for name, value in zip(SEGMENTATION[1:], expected, strict=True):
        assert torch.equal(TABLE[name].function(samples), value)


def test_plain_measures_equal_the_measure_of_that_pass():
    p = some_passes(1, n=6, spatial=(3,))
    for name in ("entropy", "max_probability", "margin"):
        plain = getattr(measures, f"plain_{name}")
        of_passes = TABLE["predictive_entropy" if name == "entropy" else name].function(p)
        torch.testing.assert_close(plain(p[0]), of_passes)
        torch.testing.assert_close(plain(p[0].movedim(1, -1), axis=-1), of_passes)
    assert measures.plain_entropy(p[0].half()).dtype == torch.float32
    with refused("p"):
        measures.plain_entropy(p[0] * 7)


def test_one_class_is_refused_where_two_are_compared():
    for name in ("margin", "bhattacharyya", "kullback_leibler"):
        with refused("classes"):
            TABLE[name].function(torch.ones(3, 2, 1))


def test_variation_predicted_needs_the_plain_pass():
    with refused("plain"):
        measures.variation_predicted(some_passes())


def test_table_is_complete_and_says_what_each_is():
    assert set(DEFAULT) | set(SEGMENTATION) <= set(TABLE)
    for name, row in TABLE.items():
        assert row.name == name
        assert set(row.needs) <= set(STATISTICS)
        assert row.direction == "higher = more uncertain"
        assert row.range
        assert row.reference
        assert ">>>" in (inspect.getdoc(row.function) or "")
        assert row.needs_plain == (name == "variation_predicted")


def test_resolve():
    def spread(kept):
        return kept.class_variance.sum(-1)

    def raw(passes):
        return passes.std(0).mean(1)

    raw.of = "passes"
    assert [row.name for row in resolve(None)] == list(DEFAULT)
    assert resolve("bald")[0] is TABLE["bald"]
    every = [row.function for row in resolve("all")]
    assert set(every) == {row.function for row in TABLE.values()}
    assert len(every) == len(set(every))  # not mutual_information and bald, which are one
    assert len(resolve(["all", spread])) == len(every) + 1
    assert resolve([measures.margin])[0] is TABLE["margin"]
    mine, stored = resolve([spread, raw])
    assert (mine.name, mine.needs, mine.of) == ("spread", CHEAP, "statistics")
    assert (stored.name, stored.needs, stored.of) == ("raw", (), "passes")
    samples = some_passes()
    kept = from_passes(samples, mine.needs)
    torch.testing.assert_close(mine(kept), 4 * measures.averaged_variance(samples).double(), atol=1e-6, rtol=0)
    assert stored(samples).shape == (40,)
    spread.needs = ("class_moments",)
    assert resolve([spread])[0].needs == ("class_moments",)
    assert isinstance(resolve([mine])[0], Measure)


@pytest.mark.parametrize("bad", [["blad"], [], ["bald", "bald"], [3], [lambda kept: kept.mean]])
def test_resolve_refuses(bad):
    with refused("measures"):
        resolve(bad)


def test_resolve_suggests():
    with refused("measures") as caught:
        resolve(["blad"])
    assert caught.value.received == "blad"
    assert "'bald'" in caught.value.remedy


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", list(TABLE))
def test_cuda_equals_cpu(name):
    samples, plain = some_passes(), some_passes(1, seed=3)[0]
    got = call(name, samples.cuda(), plain.cuda())
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), call(name, samples, plain), atol=1e-5, rtol=0)
