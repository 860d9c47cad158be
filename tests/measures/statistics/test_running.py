"""Running statistics: closed forms, streaming = batch, merge = one stream, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dropscope.measures.statistics.running import PassStatistics, from_passes
from dropscope.measures.statistics.sums import CHEAP, STATISTICS, advance, statistics_bytes
from support.errors import refused

ALL = tuple(STATISTICS)


def some_passes(passes=30, cells=(17,), classes=5, seed=0, sharpness=2.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(passes, *cells, classes, generator=generator) * sharpness
    return logits.softmax(-1).to(dtype)


def make(p, needs=ALL, **options):
    labels = torch.arange(p.shape[-2]) % p.shape[-1]
    groups = (torch.arange(p.shape[-2]) % 3).clamp_max(1)
    defaults = {"plain": some_passes(1, p.shape[1:-1], p.shape[-1], seed=9)[0], "labels": labels, "groups": groups}
    return PassStatistics(needs, **(defaults | options))


def truth(p, plain, bins=100):
    """The same in float64 from all passes at once, written the obvious way."""
    x, ref = p.double(), plain.double()
    best = ref.argmax(-1, keepdim=True).expand((*x.shape[:-1], 1))
    bin_of = (p.float() * bins).long().clamp(max=bins - 1)
    return {
        "mean": x.mean(0),
        "mean_entropy": -(torch.xlogy(x, x)).sum(-1).mean(0),
        "max_variance": x.amax(-1).var(0, correction=0),
        "predicted_deviation": (x - ref).square().gather(-1, best).squeeze(-1).mean(0),
        "class_variance": x.var(0, correction=0),
        "votes": torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).sum(0),
        "histogram": torch.nn.functional.one_hot(bin_of, bins).sum(0),
    }


def read(kept):
    names = ("mean", "mean_entropy", "max_variance", "predicted_deviation", "class_variance")
    return {n: getattr(kept, n) for n in names} | {n: kept.read(n) for n in ("votes", "histogram")}


def assert_same(a, b, tolerance):
    for name, value in a.items():
        torch.testing.assert_close(
            value.double(), b[name].double(), atol=tolerance, rtol=0, msg=lambda m, n=name: n + m
        )


def test_closed_form():
    kept = PassStatistics(ALL, plain=torch.tensor([[0.75, 0.25]]), labels=torch.tensor([0]))
    for p in ([[1.0, 0.0]], [[0.0, 1.0]]):
        kept.update(torch.tensor(p))
    assert kept.passes == 2
    assert kept.mean.tolist() == [[0.5, 0.5]]
    assert kept.mean_entropy.tolist() == [0.0]
    assert kept.max_variance.tolist() == [0.0]
    assert kept.predicted_deviation.tolist() == [(0.25**2 + 0.75**2) / 2]
    assert kept.class_variance.tolist() == [[0.25, 0.25]]
    assert kept.read("votes").tolist() == [[1, 1]]
    assert kept.read("histogram")[0, :, [0, 99]].tolist() == [[1, 1], [1, 1]]
    assert kept.correct_per_pass.tolist() == [[1], [0]]


@pytest.mark.parametrize("cells", [(17,), (3, 17), (2, 3, 4, 17), ()])
def test_streaming_stack_and_batch_agree(cells):
    p = some_passes(cells=cells)
    plain = some_passes(1, cells[-1:], seed=9)[0]
    needs = ALL[:-1]
    one, stack, blocks = (PassStatistics(needs, plain=plain) for _ in range(3))
    for each in p:
        one.update(each)
    stack.update(p.movedim(0, -1), passes_dim=-1)
    blocks.update(p[:7], passes_dim=0)
    blocks.update(p[7:], passes_dim=0)
    expected = truth(p, plain)
    for kept in (one, stack, blocks):
        assert kept.passes == len(p)
        assert_same(expected, read(kept), 1e-6)


def test_long_streams_stay_accurate():
    p = some_passes(passes=3000, cells=(4,))
    kept = make(p)
    for each in p:
        kept.update(each)
    assert_same(truth(p, kept._plain), read(kept), 2e-7)


def test_variance_of_nearly_equal_passes_is_accurate():
    generator = torch.Generator().manual_seed(0)
    p = 0.9 + 1e-5 * torch.randn(200, 50, 1, generator=generator)
    for plain in (None, torch.full((50, 1), 0.1)):
        kept = PassStatistics(("class_moments", "max_moments"), plain=plain)
        kept.update(p, passes_dim=0)
        expected = p.double().var(0, correction=0)
        torch.testing.assert_close(kept.class_variance, expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(kept.max_variance, expected[:, 0], rtol=1e-5, atol=0)


def test_equal_passes_have_variance_exactly_zero():
    p = some_passes(1)[0]
    for plain in (None, p):
        kept = PassStatistics(("class_moments", "max_moments"), plain=plain)
        for _ in range(37):
            kept.update(p)
        assert kept.class_variance.abs().max() == 0
        assert kept.max_variance.abs().max() == 0


@given(st.integers(1, 19), st.booleans(), st.sampled_from([torch.float16, torch.float32, torch.float64]))
@settings(max_examples=25, deadline=None)
def test_merge_is_one_stream(cut, with_plain, dtype):
    p = some_passes(passes=20, dtype=dtype)
    plain = some_passes(1, seed=5)[0] if with_plain else None
    needs = [n for n in ALL if with_plain or n != "predicted_deviation"]
    whole, left, right = (make(p, needs, plain=plain) for _ in range(3))
    whole.update(p, passes_dim=0)
    left.update(p[:cut], passes_dim=0)
    right.update(p[cut:], passes_dim=0)
    left.merge(right)
    assert left.passes == 20
    names = ("mean", "mean_entropy", "max_variance", "class_variance")
    assert_same({n: getattr(whole, n) for n in names}, {n: getattr(left, n) for n in names}, 1e-12)
    assert torch.equal(whole.read("votes"), left.read("votes"))
    assert torch.equal(whole.read("histogram"), left.read("histogram"))
    assert torch.equal(whole.correct_per_pass, left.correct_per_pass)


def test_merge_into_nothing_and_from_nothing():
    p = some_passes()
    full, empty = make(p), make(p)
    full.update(p, passes_dim=0)
    empty.merge(full)
    full.merge(make(p))
    assert_same(read(full), read(empty), 0)
    empty.update(p[0])
    assert (empty.passes, full.passes) == (31, 30)


def test_merge_refuses_other_needs_and_shapes():
    kept = PassStatistics(("sum_p",))
    kept.update(some_passes()[0])
    with refused("other"):
        kept.merge(PassStatistics(("votes",)))
    other = PassStatistics(("sum_p",))
    other.update(some_passes(cells=(3,))[0])
    with refused("other") as caught:
        kept.merge(other)
    assert caught.value.received == (3, 5)


def test_correct_counts_per_pass_and_group():
    p = some_passes(cells=(2, 17))
    kept = make(p, ("correct",))
    kept.update(p[:11], passes_dim=0)
    kept.update(p[11:], passes_dim=0)
    right = p.argmax(-1) == kept._labels
    member = kept._groups
    expected = torch.stack([right[..., member == g].sum(-1) for g in (0, 1)], -1).movedim(0, -2)
    assert torch.equal(kept.correct_per_pass, expected)
    assert kept.correct_per_pass.shape == (2, 30, 2)
    assert kept.group_sizes.tolist() == [int((member == g).sum()) for g in (0, 1)]


def test_correct_of_dense_predictions_counts_all_voxels():
    p = some_passes(cells=(4, 6, 7))
    labels = torch.randint(0, 5, (4, 6, 7), generator=torch.Generator().manual_seed(1))
    kept = PassStatistics(("correct",), labels=labels)
    kept.update(p, passes_dim=0)
    assert torch.equal(kept.correct_per_pass[:, 0], (p.argmax(-1) == labels).flatten(1).sum(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_full(dtype):
    p = some_passes(passes=200, dtype=dtype)
    kept = make(p)
    kept.update(p, passes_dim=0)
    assert kept.dtype == torch.float32
    assert_same(truth(p, kept._plain), read(kept), 1e-6)


def test_probability_zero_and_rounding_outside_make_no_nan():
    kept = PassStatistics(CHEAP)
    kept.update(torch.tensor([[1.0 + 1e-7, -1e-8], [0.0, 1.0]]))
    assert all(bool(value.double().isfinite().all()) for value in kept.state.values())
    assert kept.mean_entropy.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -0.1, 1.1])
def test_what_is_no_probability_is_refused(bad):
    p = some_passes(1)[0]
    p[3, 2] = bad
    kept = PassStatistics(("sum_p",))
    with refused("p"):
        kept.update(p)
    assert kept.passes == 0
    kept.update(p, check=False)
    assert kept.passes == 1


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: PassStatistics(("sum_q",)), "needs"),
        (lambda: PassStatistics(("predicted_deviation",)), "plain"),
        (lambda: PassStatistics(("correct",)), "labels"),
        (lambda: PassStatistics(("histogram",), bins=0), "bins"),
        (lambda: PassStatistics(("sum_p",)).mean, "passes"),
        (lambda: from_passes(some_passes(), ("sum_p",)).read("votes"), "needs"),
        (lambda: from_passes(torch.ones(3, 2), ("sum_p",)), "samples"),
        (lambda: from_passes(some_passes(), ("sum_p",), plain=torch.ones(2, 5)), "plain"),
        (lambda: PassStatistics(("sum_p",)).update(torch.ones(3, 2, dtype=torch.long)), "p"),
        (lambda: make(some_passes(), plain=torch.ones(4, 5)).update(some_passes()[0]), "plain"),
        (lambda: make(some_passes(), labels=torch.ones(4)).update(some_passes()[0]), "labels"),
        (lambda: make(some_passes(), groups=torch.ones(4)).update(some_passes()[0]), "groups"),
    ],
)
def test_refusals_name_the_argument(call, name):
    with refused(name):
        call()


def test_refusals_name_the_remedy():
    with refused("needs") as caught:
        PassStatistics(("sum_q",))
    assert "'sum_p'" in caught.value.remedy
    with refused("needs") as caught:
        from_passes(some_passes(), ("sum_p",)).read("votes")
    assert "'votes'" in caught.value.remedy


def test_shapes_may_not_change():
    kept = PassStatistics(("sum_p",))
    kept.update(some_passes()[0])
    with refused("p"):
        kept.update(some_passes(cells=(3,))[0])


def test_memory_is_stated_and_does_not_grow():
    p = some_passes(cells=(100,))
    kept = make(p, ALL[:-1], labels=None, plain=some_passes(1, (100,))[0])
    sizes = []
    for _ in range(2):
        kept.update(p, passes_dim=0)
        sizes.append(sum(value.numel() * value.element_size() for value in kept.state.values()))
    assert sizes[0] == sizes[1] <= 100 * statistics_bytes(ALL[:-1], classes=5)


def test_histograms_widen_before_they_overflow():
    kept = PassStatistics(("histogram",), bins=2)
    p = torch.tensor([0.1, 0.9])
    kept.update(p.expand(32767, 1, 2), passes_dim=0)
    assert kept.read("histogram").dtype == torch.int16
    other = PassStatistics(("histogram",), bins=2)
    other.update(p.expand(32767, 1, 2), passes_dim=0)
    other.merge(kept)
    kept.update(p.expand(2, 1, 2), passes_dim=0)
    assert kept.read("histogram").tolist() == [[[32769, 0], [0, 32769]]]
    assert other.read("histogram").tolist() == [[[65534, 0], [0, 65534]]]


def test_from_passes_moves_the_class_axis():
    p = some_passes(cells=(4, 6, 7))
    samples = p.movedim(-1, 2)
    kept = from_passes(samples, ALL[:-1], plain=samples[0])
    torch.testing.assert_close(kept.mean, p.double().mean(0))
    assert kept.mean.shape == (4, 6, 7, 5)


def test_advance_is_one_graph_and_pure():
    p = some_passes()
    kept = make(p, ALL[:-1])
    kept.update(p, passes_dim=0)
    state = {name: value for name, value in kept.state.items() if name != "histogram"}
    before = {name: value.clone() for name, value in state.items()}
    compiled = torch.compile(advance, fullgraph=True, backend="eager")
    after, again = advance(state, p), compiled(state, p)
    for name in state:
        assert torch.equal(state[name], before[name])
        torch.testing.assert_close(after[name], again[name])
    own = make(p, ALL[:-1], step=compiled)
    own.update(p, passes_dim=0)
    assert_same(read(kept), read(own), 1e-12)


def test_gradients_are_not_kept():
    p = some_passes(1)[0].requires_grad_()
    kept = PassStatistics(CHEAP)
    kept.update(p)
    assert not any(value.requires_grad for value in kept.state.values())


@pytest.mark.parametrize(("shape", "fits"), [((5,), True), ((1, 5), True), ((17, 5), True), ((2, 17, 5), False)])
def test_a_plain_pass_is_shared_where_it_broadcasts(shape, fits):
    plain, p = torch.full(shape, 0.2), some_passes(1)[0]
    kept = PassStatistics(("class_moments",), plain)
    if fits:
        kept.update(p)
        return
    with refused("plain"):
        kept.update(p)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_equals_cpu():
    p = some_passes()
    cpu, gpu = make(p), make(p)
    cpu.update(p, passes_dim=0)
    gpu.update(p.cuda(), passes_dim=0)
    assert_same(read(cpu), {name: value.cpu() for name, value in read(gpu).items()}, 1e-6)
    assert torch.equal(cpu.correct_per_pass, gpu.correct_per_pass.cpu())
