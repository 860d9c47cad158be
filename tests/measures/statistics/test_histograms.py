"""Histograms over passes: counting and the scan against NumPy from stored passes, in every layout, block and device."""

import importlib
import importlib.util
import os
import sys
import types

import numpy as np
import pytest
import scipy.stats
import torch

from dropscope import measures
from dropscope.measures import SEGMENTATION, TABLE
from dropscope.measures import histograms as histogram_measures
from dropscope.measures.statistics import histograms, sums
from dropscope.measures.statistics.running import PassStatistics, from_passes
from support.errors import refused

FIVE = (*SEGMENTATION, "averaged_std")
NEEDS = ("sum_p", "class_moments", "histogram")


def some_passes(passes=50, n=1, classes=3, spatial=(6, 5, 4), seed=0, sharpness=1.5):
    """Passes `[passes, n, C, *spatial]`, voxels certain and uncertain, with exact 0, 1 and bin edges among them."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, n, classes, *spatial, generator=generator) * 4
    spread = torch.rand(1, n, 1, *spatial, generator=generator) * sharpness
    p = (centre + spread * torch.randn(passes, n, classes, *spatial, generator=generator)).softmax(2)
    p[:, 0, :, 0] = 0.0
    p[:, 0, 0, 0] = 1.0  # certain
    p[::2, 0, :2, -1] = 0.5  # on the edge of a bin
    return p


def numpy_measures(samples, floor=1e-7, bins=100):
    """Every voxel by itself, from stored passes, each definition as it is written (SEGMENTATION eq 3 to 6)."""
    p = samples.movedim(2, -1).numpy()
    passes, shape, classes = len(p), p.shape[1:-1], p.shape[-1]
    p = p.reshape(passes, -1, classes)
    found = {name: np.empty(p.shape[1]) for name in FIVE}
    for v in range(p.shape[1]):
        one = p[:, v]
        wide = one.astype(np.float64)
        found["averaged_variance"][v] = np.trace(np.cov(wide.T, bias=True)) / classes
        found["averaged_std"][v] = wide.std(0).mean()
        numbers = np.minimum(np.floor(one * np.float32(bins)).astype(int), bins - 1)
        f = np.stack([np.bincount(numbers[:, c], minlength=bins) / passes for c in range(classes)])
        found["averaged_entropy"][v] = np.mean([scipy.stats.entropy(row) for row in f])
        first, second = np.argsort(-wide.mean(0), kind="stable")[:2]
        found["bhattacharyya"][v] = np.sqrt(f[first] * f[second]).sum()
        g, h = (np.where(f[c] > 0, f[c], floor) for c in (first, second))
        found["kullback_leibler"][v] = -scipy.stats.entropy(g, h) - scipy.stats.entropy(h, g)
    return {name: value.reshape(shape) for name, value in found.items()}


def kept_of(samples, block=1, needs=NEEDS, plain=None):
    kept = PassStatistics(needs, plain)
    for begin in range(0, len(samples), block):
        kept.update(samples[begin : begin + block].movedim(2, -1), passes_dim=0)
    return kept


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_two_histograms_with_known_answers():
    # Class 0 lies in bin 10 three times of four and in bin 20 once; class 1 always in bin 20; class 2 always in bin 0.
    rows = torch.tensor([[[0.105, 0.205, 0.0]]] * 3 + [[[0.205, 0.205, 0.0]]])
    kept = kept_of(rows)
    assert measures.averaged_entropy(kept).item() == pytest.approx(scipy.stats.entropy([0.75, 0.25]) / 3, abs=1e-7)
    assert measures.bhattacharyya(kept).item() == pytest.approx(0.5, abs=1e-7)
    one, two = np.full(100, 1e-7), np.full(100, 1e-7)
    one[[10, 20]], two[20] = (0.75, 0.25), 1.0
    expected = -scipy.stats.entropy(one, two) - scipy.stats.entropy(two, one)
    assert measures.kullback_leibler(kept).item() == pytest.approx(expected, rel=1e-6)


def test_equal_histograms_are_the_most_uncertain_and_certain_ones_have_no_entropy():
    same = torch.rand(30, 5, 1, generator=torch.Generator().manual_seed(0)).expand(30, 5, 2) / 2
    assert measures.bhattacharyya(same).tolist() == [1.0] * 5
    assert measures.kullback_leibler(same).tolist() == [0.0] * 5
    certain = torch.tensor([[[0.0, 1.0]]]).expand(49, 1, 2)
    assert measures.averaged_entropy(certain).tolist() == [0.0]
    assert measures.bhattacharyya(certain).tolist() == [0.0]


@pytest.mark.parametrize(("value", "bin_"), [(0.0, 0), (0.0099, 0), (0.25, 25), (0.9999, 99), (1.0, 99)])
def test_a_value_falls_into_its_bin(value, bin_):
    kept = kept_of(torch.full((3, 1, 1), value), needs=("histogram",))
    assert kept.read("histogram")[0, 0].nonzero().flatten().tolist() == [bin_]


# --- against NumPy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("passes", [1, 7, 50, 80])
def test_measures_equal_numpy_from_stored_passes(classes, passes):
    samples = some_passes(passes, classes=classes)
    expected = numpy_measures(samples)
    kept = kept_of(samples)
    for name in FIVE:
        np.testing.assert_allclose(TABLE[name](kept).numpy(), expected[name], atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("floor", [1e-10, 1e-7, 1e-3, 0.05])
def test_every_floor_equals_numpy_even_one_above_a_share(floor):
    samples = some_passes(50)  # one pass is a share of 0.02
    expected = numpy_measures(samples, floor)["kullback_leibler"]
    kept = kept_of(samples)
    for asked in (1e-7, floor, floor):  # one after the other on the same statistics
        got = measures.kullback_leibler(kept, floor=asked)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("spatial", [(), (3,), (9, 7), (6, 5, 4)])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("block", [1, 8, 50])
def test_layouts_and_blocks_do_not_matter(spatial, n, block):
    samples = some_passes(50, n, spatial=spatial or (1,))
    samples = samples if spatial else samples[..., 0]
    last = samples.movedim(2, -1).contiguous().movedim(-1, 2)  # the same values, classes last in memory
    expected = from_passes(samples, NEEDS)
    for given in (samples, last):
        kept = kept_of(given, block)
        assert torch.equal(kept.read("histogram"), expected.read("histogram"))
        torch.testing.assert_close(kept.class_variance, expected.class_variance, atol=1e-12, rtol=0)
        for name in FIVE:
            torch.testing.assert_close(TABLE[name](kept), TABLE[name](expected), atol=1e-6, rtol=0)


def test_large_volumes_are_taken_in_by_blocks_and_small_ones_whole(monkeypatch):
    samples, plain = some_passes(20), some_passes(1, seed=3)[0].movedim(1, -1)
    for block in (1, 20):
        for own in (None, plain):
            whole = kept_of(samples, block, plain=own)
            monkeypatch.setattr(sums, "_DENSE", 1)
            monkeypatch.setattr(sums, "_IN_CACHE", 50)
            assert sums.cache_blocks({"sum_p": whole.state["sum_p"]}, samples.movedim(2, -1))
            blocks = kept_of(samples, block, plain=own)
            monkeypatch.undo()
            torch.testing.assert_close(blocks.mean, whole.mean, atol=1e-14, rtol=0)
            torch.testing.assert_close(blocks.class_variance, whole.class_variance, atol=1e-14, rtol=0)


def test_blocks_serve_only_what_looks_at_one_value_at_a_time(monkeypatch):
    monkeypatch.setattr(sums, "_DENSE", 1)
    p = some_passes(4).movedim(2, -1)
    kept = from_passes(some_passes(4), ("sum_p", "votes"))
    assert sums.cache_blocks(kept.state, p) == []
    shared = {"sum_p": torch.zeros(2, *p.shape[1:]).double(), "squared": torch.zeros(2, *p.shape[1:]).double()}
    assert sums.cache_blocks(shared, p.expand(4, *p.shape[1:]).unsqueeze(1).expand(4, 2, *p.shape[1:])) == []


def test_counting_and_scanning_by_threads_is_the_same(monkeypatch):
    samples = some_passes(40, n=2)
    expected = kept_of(samples)
    values = [TABLE[name](expected) for name in SEGMENTATION]
    threads = torch.get_num_threads()
    monkeypatch.setattr(histograms, "_THREADS_PAY_OFF", 1)
    monkeypatch.setattr(histograms, "_INDEX_AT_ONCE", 500)
    torch.set_num_threads(2)
    try:
        kept = kept_of(samples)
        assert torch.equal(kept.read("histogram"), expected.read("histogram"))
        for name, value in zip(SEGMENTATION, values, strict=True):
            assert torch.equal(TABLE[name](kept), value)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bins", [1, 10, 256, 300])
def test_any_number_of_bins(bins):
    samples = some_passes(40)
    kept = PassStatistics(NEEDS, bins=bins)
    kept.update(samples.movedim(2, -1), passes_dim=0)
    expected = numpy_measures(samples, bins=bins)
    for name in ("averaged_entropy", "bhattacharyya", "kullback_leibler"):
        np.testing.assert_allclose(TABLE[name](kept).numpy(), expected[name], atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions(dtype):
    samples = some_passes(40).to(dtype)
    expected = numpy_measures(samples.float() if dtype == torch.float16 else samples)
    kept = kept_of(samples)
    np.testing.assert_allclose(measures.averaged_entropy(kept).numpy(), expected["averaged_entropy"], atol=1e-5)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_measures_share_one_scan_until_more_passes_come(monkeypatch):
    scans = []
    monkeypatch.setattr(
        histogram_measures, "summarize", lambda *given: scans.append(given[3]) or histograms.summarize(*given)
    )
    samples = some_passes(20)
    kept = kept_of(samples)
    for name in (*SEGMENTATION, *SEGMENTATION):
        TABLE[name](kept)
    assert scans == [1e-7]
    measures.kullback_leibler(kept, floor=1e-3)
    assert scans == [1e-7, 1e-3]
    before = measures.averaged_entropy(kept)
    kept.update(samples[:1].movedim(2, -1), passes_dim=0)
    after = measures.averaged_entropy(kept)
    assert len(scans) == 3
    torch.testing.assert_close(after, TABLE["averaged_entropy"](torch.cat([samples, samples[:1]])))
    assert not torch.equal(before, after)


@pytest.mark.parametrize("cut", [1, 31, 32, 33, 64])
def test_passes_that_wait_are_counted_when_read_or_merged(cut):
    samples = some_passes(70)
    left, right = kept_of(samples[:cut]), kept_of(samples[cut:])
    left.merge(right)
    expected = from_passes(samples, NEEDS).read("histogram")
    assert torch.equal(left.read("histogram"), expected)
    assert int(left.read("histogram").sum()) == 70 * samples[0].numel()


def test_memory_is_what_is_stated_whatever_the_passes():
    for passes in (40, 200):
        kept = kept_of(some_passes(passes), needs=("histogram",))
        numbers = kept._waiting._numbers
        kept_bytes = sum(t.numel() * t.element_size() for t in (*kept.state.values(), numbers))
        assert kept_bytes == 120 * sums.statistics_bytes(("histogram",), classes=3)


def test_passes_taken_in_under_inference_mode_are_read_outside_it(monkeypatch):
    samples = some_passes(40)
    expected = TABLE["averaged_entropy"](samples)
    monkeypatch.setattr(sums, "_DENSE", 1)
    kept = PassStatistics(NEEDS)
    with torch.inference_mode():
        kept.update(samples[:20].movedim(2, -1), passes_dim=0)
    kept.update(samples[20:].movedim(2, -1), passes_dim=0)
    torch.testing.assert_close(measures.averaged_entropy(kept), expected)
    torch.testing.assert_close(kept.mean, samples.movedim(2, -1).double().mean(0))


def test_two_classes_need_two_classes_and_the_mean():
    with refused("classes"):
        measures.bhattacharyya(torch.rand(5, 2, 1))
    alone = kept_of(some_passes(5), needs=("histogram",))
    assert measures.averaged_entropy(alone).shape == (1, 6, 5, 4)
    for name in ("bhattacharyya", "kullback_leibler"):
        with refused("needs") as caught:
            TABLE[name](alone)
        assert "'sum_p'" in caught.value.remedy


def test_nan_that_is_not_checked_makes_no_noise_and_no_crash():
    p = torch.full((2, 1, 3), float("nan"))
    kept = PassStatistics(NEEDS)
    kept.update(p, passes_dim=0, check=False)
    assert int(kept.read("histogram").sum()) == 6


def test_top_two_goes_by_class_index_among_equals():
    mean = torch.tensor([[0.2, 0.4, 0.4], [0.4, 0.2, 0.4], [0.25, 0.25, 0.25], [0.0, 0.0, 1.0]])
    expected = mean.sort(dim=-1, descending=True, stable=True).indices[..., :2]
    assert torch.equal(histograms.top_two(mean), expected)


# --- the authors' package ---------------------------------------------------------------------------------------------


def test_ranks_are_those_of_the_authors_package(monkeypatch):
    """monte-carlo-analysis 0.0.1, where it is installed or lies unpacked in the folder MONTE_CARLO_ANALYSIS.

    It needs numba, which only compiles: without it, its functions run as they are written. Its conventions differ by
    constant factors.
    """
    if os.environ.get("MONTE_CARLO_ANALYSIS"):
        monkeypatch.syspath_prepend(os.environ["MONTE_CARLO_ANALYSIS"])
    if importlib.util.find_spec("monte_carlo_analysis") is None:
        pytest.skip("monte-carlo-analysis is neither installed nor named by MONTE_CARLO_ANALYSIS")
    if importlib.util.find_spec("numba") is None:
        numba = types.ModuleType("numba")
        numba.jit = numba.njit = lambda *given, **options: given[0] if given and callable(given[0]) else lambda f: f
        monkeypatch.setitem(sys.modules, "numba", numba)
    strategies = importlib.import_module("monte_carlo_analysis.strategies")
    metrics = importlib.import_module("monte_carlo_analysis.uncertainty_metrics")
    samples = some_passes(50, spatial=(8, 6))[:, 0]
    samples = samples[:, :, 1:-1]  # without the values that lie on an edge: np.histogram puts those elsewhere
    theirs = {
        "averaged_variance": strategies.AverageSingleDistributionStrategy(metrics.VarianceSingleDistribution()),
        "averaged_entropy": strategies.AverageSingleDistributionStrategy(metrics.EntropySingleDistribution()),
        "bhattacharyya": strategies.TopDistributionsSimilarityStrategy(
            metrics.BhattacharyaCoefficentDistributionSimilarity()
        ),
        "kullback_leibler": strategies.TopDistributionsSimilarityStrategy(
            metrics.KullbackLeiblerDivergenceDistributionSimilarity()
        ),
    }
    factor = {"averaged_variance": 1, "averaged_entropy": 100, "bhattacharyya": 1, "kullback_leibler": 2}
    for name, strategy in theirs.items():
        expected = strategy(samples.numpy().astype(np.float64)).ravel()
        got = TABLE[name].function(samples.unsqueeze(1)).numpy().ravel()
        np.testing.assert_allclose(got, factor[name] * expected, atol=1e-5, rtol=0, err_msg=name)
        assert scipy.stats.spearmanr(got, expected).statistic > 0.9999, name


# --- a GPU ------------------------------------------------------------------------------------------------------------

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED), reason="needs a GPU, or TRITON_INTERPRET=1"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@needs_triton
@pytest.mark.parametrize(("n", "spatial", "classes"), [(1, (5, 4, 3), 3), (2, (4, 3), 2), (3, (1, 1), 4)])
@pytest.mark.parametrize("own", [False, True])
def test_the_kernel_takes_in_what_torch_takes_in(n, spatial, classes, own):
    pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")
    from dropscope.measures.statistics import kernels as histogram_kernels

    samples = some_passes(5, n, classes, spatial).to(DEVICE)
    plain = some_passes(1, n, classes, spatial, seed=3)[0].movedim(1, -1).to(DEVICE) if own else None
    expected = kept_of(samples.cpu(), plain=None if plain is None else plain.cpu())
    kept = kept_of(samples[:1], plain=plain)
    kept.read("histogram")
    for begin, end in ((1, 2), (2, 5)):
        assert histogram_kernels.take_in(kept.state, samples[begin:end].movedim(2, -1))
    kept.passes = 5
    assert torch.equal(kept.state["histogram"].cpu(), expected.read("histogram"))
    torch.testing.assert_close(kept.mean.cpu(), expected.mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(kept.class_variance.cpu(), expected.class_variance, atol=1e-12, rtol=0)


@needs_triton
@pytest.mark.parametrize("floor", [1e-10, 1e-3])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_the_kernel_reads_what_the_scan_reads(floor, classes):
    pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")
    from dropscope.measures.statistics import kernels as histogram_kernels

    samples = some_passes(20, classes=max(classes, 2), spatial=(4, 3, 2))[:, :, :classes]
    kept = kept_of(samples)
    pair = histograms.top_two(kept.mean).reshape(-1, 2) if classes > 1 else None
    counts = kept.read("histogram").reshape(-1, classes, 100)
    filled = torch.arange(21, dtype=torch.float64) / 20
    filled[0] = floor
    expected = torch.from_numpy(histograms._scan_on_cpu(counts.numpy(), pair, filled.numpy(), 1000))
    slow = histograms._scan_in_slabs(counts, pair, filled)
    given = (counts.to(DEVICE), None if pair is None else pair.to(DEVICE), filled.to(DEVICE))
    torch.testing.assert_close(histogram_kernels.scan(*given).cpu(), expected, atol=1e-7, rtol=0)
    torch.testing.assert_close(slow, expected, atol=1e-7, rtol=0)
