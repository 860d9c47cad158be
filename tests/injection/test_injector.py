"""Noise in a model: what it does in closed form, that it depends on its key alone, that nothing else moves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.injection.injector import Noise, injected
from dropscope.injection.sites import examine
from dropscope.model.inputs import Call
from dropscope.noise import keyed
from support import zoo
from support.errors import refused

Batch = dict[str, Tensor] | Tensor


def run(model: nn.Module, call: Call) -> Tensor:
    output = model(*call.args, **call.kwargs)
    return output if isinstance(output, Tensor) else output.logits


@torch.no_grad()
def passes(model: nn.Module, placement: str, batch: Batch, count: int = 3, **options: Any) -> Tensor:
    with injected(model, placement, **options):
        return torch.stack([run(model, Call.of(batch)) for _ in range(count)])


def recorded(opened: Noise) -> list[tuple[Any, Tensor, Tensor, Tensor]]:
    """Every (point, before, after, keys) of the noise from now on."""
    seen: list[tuple[Any, Tensor, Tensor, Tensor]] = []

    def watch(point: Any, spec: Any, before: Tensor, after: Tensor, keys: keyed.Keys) -> None:
        seen.append((point, before.clone(), after.clone(), keys.states))

    opened.watcher = watch
    return seen


# --- closed form ------------------------------------------------------------------------------------------------------


def test_noise_on_a_layer_is_its_mask_times_its_value() -> None:
    net, x = zoo.cifar(), zoo.images()
    with torch.no_grad(), injected(net, "fc1=0.5", seed=7) as opened:
        opened.at(pass_=3, ids=[10, 11, 12, 13])
        out = net(x)
    keys = keyed.streams(7, keyed.site_key("fc1", 0), torch.tensor(3), torch.tensor([10, 11, 12, 13]))
    mask = keyed.multiplier(keys, (128,), 0.5, "bernoulli")
    with torch.no_grad():
        for conv in (net.conv1, net.conv2, net.conv3):
            x = F.max_pool2d(F.relu(conv(x)), 2)
        by_hand = net.fc2(F.relu(net.fc1(x.flatten(1))) * mask)
    assert torch.equal(out, by_hand)
    assert set(mask.unique().tolist()) == {0.0, 2.0}


def test_the_mean_over_passes_is_the_plain_output_of_a_linear_model() -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 3)).eval()
    x = zoo.vectors()
    with torch.no_grad():
        plain = net(x)
    drawn = passes(net, "0=0.3", x, 400)
    error = (drawn.mean(0) - plain).abs() / (drawn.std(0) / 400**0.5)
    assert float(error.max()) < 5


def test_a_convolution_drops_whole_channels() -> None:
    net, x = zoo.cifar(), zoo.images()
    for text, whole in (("conv1=0.5", True), ("conv1=0.5 mask=element", False)):
        with torch.no_grad(), injected(net, text) as opened:
            seen = recorded(opened)
            net(x)
        _, before, after, _ = seen[0]
        factor = torch.where(before > 0, after / before, torch.nan).flatten(2)
        low, high = factor.nan_to_num(9).amin(-1), factor.nan_to_num(-9).amax(-1)
        alive = high >= 0
        assert bool((low == high)[alive].all()) is whole


@pytest.mark.parametrize("kind", ["gaussian", "multinomial"])
def test_other_noises_reach_the_model(kind: str) -> None:
    drawn = passes(zoo.cifar(), f"fc1=0.4 noise={kind}", zoo.images())
    assert float(drawn.std(0).min()) > 0


def test_before_and_after_a_relu_are_equivalent() -> None:
    """The position is not in the key, so placements that are equal by mathematics are equal in numbers."""
    net, x = zoo.cifar(), zoo.images()
    before = passes(net, "conv2@before_activation=0.5", x)
    assert torch.allclose(before, passes(net, "conv2@after_activation=0.5", x), atol=1e-6)


def test_rates_are_nested() -> None:
    masks = []
    for rate in (0.3, 0.5):
        with torch.no_grad(), injected(zoo.cifar(), f"fc1@output={rate}") as opened:
            seen = recorded(opened)
            opened._model(zoo.images())
        masks.append(seen[0][2] == 0)
    assert bool((masks[1] | ~masks[0]).all())
    assert int(masks[1].sum()) > int(masks[0].sum())


# --- passes, ids, seeds, masks ----------------------------------------------------------------------------------------


def test_each_forward_is_the_next_pass_and_each_pass_can_be_repeated() -> None:
    net, x = zoo.cifar(), zoo.images()
    drawn = passes(net, "all=0.3", x, 4)
    assert len({tuple(p.flatten().tolist()) for p in drawn}) == 4
    with torch.no_grad(), injected(net, "all=0.3") as opened:
        for number in (2, 0, 3):
            opened.at(pass_=number)
            assert torch.equal(net(x), drawn[number])


def test_seeds_are_independent() -> None:
    net, x = zoo.cifar(), zoo.images()
    assert not torch.equal(passes(net, "fc1=0.5", x), passes(net, "fc1=0.5", x, seed=1))
    assert torch.equal(passes(net, "fc1=0.5", x), passes(net, "fc1=0.5", x, seed=0))


def test_several_passes_in_one_batch_equal_the_loop() -> None:
    for net, x, text in (
        (zoo.cifar(), zoo.images(), "all=0.3"),
        (zoo.encoder(False), zoo.sequences(), "own"),
        (zoo.multihead(), zoo.sequences(), "own"),
    ):
        looped = passes(net, text, x, 3)
        with torch.no_grad(), injected(net, text) as opened:
            opened.at(pass_=torch.arange(3).repeat_interleave(len(x)))
            folded = run(net, Call.of(x).repeat(3))
        assert torch.allclose(folded.view_as(looped), looped, atol=1e-5)


class FlatTokens(nn.Module):
    """Tokens of all examples in one dimension, as OPT's feed-forward layers have had them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        flat = self.inner(tokens.reshape(-1, 6)).relu()
        return self.head(flat).view(len(tokens), -1, 3)


@pytest.mark.parametrize("mask", ["element", "channel"])
def test_longer_texts_fold_more_tokens_and_shorter_ones_keep_their_masks(mask: str) -> None:
    torch.manual_seed(0)
    net, short = FlatTokens().eval(), torch.randn(4, 5, 6)
    long = torch.cat([short, torch.zeros(4, 3, 6)], 1)
    site_map = examine(net, Call.of(short))
    text, found = f"inner=0.5 mask={mask}", []
    for x in (short, long):
        with torch.no_grad(), injected(net, text, site_map=site_map) as opened:
            opened.at(ids=range(4))
            found.append(net(x))
    assert torch.allclose(found[0], found[1][:, :5], atol=1e-6)


def test_one_mask_per_pass_for_all_examples() -> None:
    net, x = zoo.cifar(), zoo.images()
    for masks, alike in (("per_pass", True), ("per_example", False)):
        with torch.no_grad(), injected(net, "fc1@output=0.5", masks=masks) as opened:
            seen = recorded(opened)
            net(x), net(x)
        dropped = [after == 0 for _, _, after, _ in seen]
        assert bool((dropped[0] == dropped[0][:1]).all()) is alike
        assert not torch.equal(dropped[0], dropped[1])
    with refused("masks") as caught, injected(net, "fc1=0.5", masks="per_batch"):
        pass
    assert caught.value.received == "per_batch"


def test_ids_stand_for_examples() -> None:
    net, x = zoo.cifar(), zoo.images()
    with torch.no_grad(), injected(net, "fc1=0.5") as opened:
        opened.at(0, ids=["a", "b", "c", "d"])
        a = net(x)
        opened.at(0, ids=["d", "c", "b", "a"])
        b = net(x.flip(0))
        opened.at(0, ids=torch.arange(4))
        c = net(x)
    assert torch.allclose(a, b.flip(0), atol=1e-5)
    assert not torch.allclose(a, c, atol=1e-3)


def test_one_id_per_example() -> None:
    with torch.no_grad(), injected(zoo.cifar(), "fc1=0.5") as opened:
        opened.at(0, ids=[1, 2])
        with refused("ids") as caught:
            opened._model(zoo.images())
    assert caught.value.received == "2 ids for 4 examples"


def test_a_value_shared_by_all_examples_holds_one_pass() -> None:
    net, x = zoo.vision(), zoo.images()
    assert float(passes(net, "position=0.5", x).std(0).min()) > 0
    with torch.no_grad(), injected(net, "position=0.5") as opened:
        opened.at(pass_=[0, 0, 1, 1])
        with refused("pass_") as caught:
            net(x)
    assert "'position'" in caught.value.what
    assert caught.value.received == [0, 0, 1, 1]


def test_every_call_of_a_shared_module_has_a_mask_of_its_own() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    net = nn.Sequential(block, block, block, nn.Linear(8, 2)).eval()
    with torch.no_grad(), injected(net, "0.0@output=0.5") as opened:
        seen = recorded(opened)
        net(zoo.vectors())
    masks = [(after == 0) for _, _, after, _ in seen]
    assert [point.call for point, *_ in seen] == [0, 1, 2]
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])
    with torch.no_grad(), injected(net, "0.0#1@output=0.5") as opened:
        only = recorded(opened)
        net(zoo.vectors())
    assert [point.call for point, *_ in only] == [1]
    assert torch.equal(only[0][2] == 0, masks[1])


def test_calls_that_the_first_forward_did_not_make_are_disturbed_too() -> None:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(16, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            state = x[:, 0]
            for step in range(x.shape[1]):
                state = torch.tanh(self.fc(state + x[:, step]))
            return self.out(state)

    net = zoo.seeded(Loops)
    with torch.no_grad(), injected(net, "fc=0.5") as opened:
        net(zoo.sequences(length=2))
        seen = recorded(opened)
        net(zoo.sequences(length=5))
    assert [point.call for point, *_ in seen] == [0, 1, 2, 3, 4]


# --- an example's result is its own -----------------------------------------------------------------------------------


def cases() -> list[Any]:
    return [
        pytest.param(zoo.cifar, lambda: zoo.images(32), "all=0.3", id="cnn"),
        pytest.param(zoo.resnet, lambda: zoo.images(32), "conv=0.2,residual=0.1", id="resnet"),
        pytest.param(zoo.unet3d, lambda: zoo.volumes(32), "own*2,last=0.2", id="unet3d"),
        pytest.param(lambda: zoo.encoder(False), lambda: zoo.sequences(32), "own,attention=0.4", id="encoder"),
        pytest.param(zoo.recurrent, lambda: zoo.tokens(32), "recurrent=0.3,own", id="lstm"),
        pytest.param(lambda: zoo.hugging_face("bert", "sdpa"), lambda: zoo.text(32, padded=False), "own", id="bert"),
        pytest.param(lambda: zoo.hugging_face("gpt2", "eager"), lambda: zoo.text(32, padded=False), "own", id="gpt2"),
    ]


@pytest.mark.parametrize(("build", "data", "text"), cases())
def test_batch_size_and_order_change_nothing(
    build: Callable[[], nn.Module], data: Callable[[], Batch], text: str, request: Any
) -> None:
    if request.node.callspec.id in ("bert", "gpt2"):
        pytest.importorskip("transformers")
    net, batch = build(), Call.of(data())
    site_map = examine(net, batch)

    @torch.no_grad()
    def drawn(chunks: list[list[int]]) -> tuple[Tensor, dict[Any, Tensor]]:
        outputs, masks = torch.empty(0), {}
        rows: list[Tensor] = []
        with injected(net, text, site_map=site_map) as opened:
            for chunk in chunks:
                seen = recorded(opened)
                opened.at(pass_=1)
                rows.append(run(net, batch.take(chunk)))
                for point, _, _, keys in seen:
                    masks.setdefault(point, torch.empty(32, dtype=torch.int64))[chunk] = keys
            outputs = torch.cat(rows)
        return outputs[torch.argsort(torch.tensor([i for chunk in chunks for i in chunk]))], masks

    order = torch.randperm(32, generator=torch.Generator().manual_seed(0)).tolist()
    whole, keys = drawn([list(range(32))])
    assert len(keys) > 0
    for chunks in (
        [[i] for i in range(32)],
        [list(range(i, min(i + 7, 32))) for i in range(0, 32, 7)],
        [order],
    ):
        output, other = drawn(chunks)
        assert all(torch.equal(keys[point], other[point]) for point in keys)
        assert torch.allclose(output, whole, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "backend"), [("bert", "eager"), ("bert", "sdpa"), ("gpt2", "eager"), ("gpt2", "sdpa")]
)
@pytest.mark.parametrize("text", ["own", "attention=0.3", "all=0.2"])
def test_right_padding_changes_nothing(family: str, backend: str, text: str) -> None:
    pytest.importorskip("transformers")
    net, long = zoo.hugging_face(family, backend), zoo.text(4, 12)
    together = passes(net, text, long)
    for i in range(4):
        length = int(long["attention_mask"][i].sum())
        alone = {name: part[i : i + 1, :length] for name, part in long.items()}
        assert torch.allclose(passes(net, text, alone)[:, 0], together[:, i], atol=1e-5)


def masks_in_short() -> str:
    net, x = zoo.cifar(), zoo.images()
    with torch.no_grad(), injected(net, "all=0.5", seed=3) as opened:
        seen = recorded(opened)
        opened.at(pass_=5, ids=["a", "b", 7, 2**40])
        net(x)
    dropped = [(before != 0) & (after == 0) for _, before, after, _ in seen]
    marks = [int((mask.flatten().nonzero() ** 2 % 9973).sum()) for mask in dropped]
    return str(marks + Call((x,)).keys().tolist())


def test_the_same_masks_in_another_process() -> None:
    """R18: Python's own hash differs there, and nothing may depend on it."""
    code = "import sys; sys.path[:0] = sys.argv[1:]; from injection.test_injector import masks_in_short as masks\n"
    code += "print(masks())"
    command = [sys.executable, "-c", code, *(path for path in sys.path if path)]
    other = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert other.stdout.strip() == masks_in_short()


# --- nothing else moves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_afterwards_what_it_was(training: bool, untouched: Callable[..., Any]) -> None:
    net = zoo.resnet().train(training)
    net.layer1.bn1.train(not training)
    net.fc.weight.requires_grad_(False)
    with untouched(net):
        passes(net, "conv=0.3,last=0.5", zoo.images())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_also_after_an_exception_inside_the_model(error: type[BaseException], untouched: Callable[..., Any]) -> None:
    net = zoo.resnet().train()
    calls = []

    def fail(module: nn.Module, args: Any) -> None:
        calls.append(1)
        if len(calls) > 6:  # past the runs that look for sites
            raise error("in the middle")

    net.layer2.register_forward_pre_hook(fail)
    with untouched(net), pytest.raises(error, match="in the middle"):
        passes(net, "conv=0.3", zoo.images(), 9)


def test_also_after_an_exception_of_the_caller(untouched: Callable[..., Any]) -> None:
    net = zoo.resnet().train()

    def run() -> None:
        with injected(net, "conv=0.3"):
            net(zoo.images())
            raise KeyError

    with untouched(net), pytest.raises(KeyError):
        run()


def test_also_after_a_placement_that_does_not_fit(untouched: Callable[..., Any]) -> None:
    net = zoo.resnet().train()
    with untouched(net), refused("placement") as caught:
        passes(net, "convv=0.3", zoo.images())
    assert caught.value.received == "convv"


def test_batchnorm_stays_put_whatever_is_switched_in_the_middle(untouched: Callable[..., Any]) -> None:
    """R9, R14: a framework calls .train() or .eval() between passes."""
    net, x = zoo.resnet(), zoo.images()
    expected = passes(net, "conv=0.3", x, 4)
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.no_grad(), injected(net, "conv=0.3"):
        drawn = [net(x)]
        net.train()
        drawn.append(net(x))
        net.eval()
        drawn.append(net(x))
        net.layer1.train()
        drawn.append(net(x))
    assert torch.equal(torch.stack(drawn), expected)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in net.named_buffers())
    assert not any(module.training for module in net.modules())


PLAIN = {
    "cifar": (zoo.cifar, zoo.images),
    "resnet": (zoo.resnet, zoo.images),
    "unet3d": (zoo.unet3d, zoo.volumes),
    "recurrent": (zoo.recurrent, zoo.tokens),
    "functional": (zoo.functional, zoo.images),
    "vision": (zoo.vision, zoo.images),
    "encoder": (lambda: zoo.encoder(False), zoo.sequences),
}


@pytest.mark.parametrize("text", ["none", "last=0"])
@pytest.mark.parametrize("name", PLAIN)
def test_no_noise_is_the_model_in_eval_bit_for_bit(name: str, text: str) -> None:
    net, x = PLAIN[name][0](), PLAIN[name][1]()
    with torch.no_grad():
        plain = net(x)
    net.train()
    assert all(torch.equal(drawn, plain) for drawn in passes(net, text, x))


@pytest.mark.parametrize("build", [lambda: zoo.encoder(True), lambda: zoo.multihead(True)])
def test_no_noise_takes_torchs_fast_path_as_the_model_does(build: Callable[[], nn.Module]) -> None:
    net, x = build(), zoo.sequences()
    site_map = examine(net, Call.of(x))
    with torch.no_grad():
        plain = net(x)
    assert all(torch.equal(drawn, plain) for drawn in passes(net, "none", x, site_map=site_map))
    assert torch.allclose(passes(net, "none", x)[0], plain, atol=1e-6)


def test_no_noise_holds_layerdrop_still() -> None:
    """R13: in train mode nine layers of ten would be left out."""
    net, x = zoo.seeded(zoo.SkipsLayers), zoo.vectors()
    with torch.no_grad():
        plain = net(x)
    net.train()
    assert all(torch.equal(drawn, plain) for drawn in passes(net, "none", x))
    assert net.layerdrop == 0.9
    assert float(passes(net, "own", x).std(0).min()) > 0


def test_no_noise_switches_off_what_ignores_eval() -> None:
    net = nn.Sequential(nn.Linear(8, 64), _AlwaysOn(), nn.Linear(64, 2)).eval()
    x = zoo.vectors()
    quiet = passes(net, "none", x)
    assert torch.equal(quiet[0], quiet[2])
    with torch.no_grad():
        assert torch.equal(quiet[0], net[2](net[0](x)))
    assert float(passes(net, "own", x).std(0).min()) > 0


class _AlwaysOn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.3)


def test_in_place_layers_corrupt_nothing() -> None:
    """R12: the input of the user, and the passes after the first."""
    inside = nn.Sequential(
        nn.ReLU(inplace=True), nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Dropout(0.4, inplace=True), nn.Linear(32, 3)
    )
    outside = nn.Sequential(nn.ReLU(), nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 3))
    outside.load_state_dict(inside.state_dict())
    x = zoo.vectors().relu()
    for text in ("own", "1=0.5", "1@before_activation=0.5", "1@output=0.5,own"):
        drawn = passes(inside.eval(), text, x.clone())
        assert torch.equal(drawn, passes(outside.eval(), text, x))
        assert float(drawn.std(0).min()) > 0


def test_a_deterministic_request_beside_a_stochastic_one() -> None:
    """R15: the same model, two threads."""
    net, x = zoo.resnet(), zoo.images()
    with torch.no_grad():
        plain = net(x)
    expected = passes(net, "conv=0.3", x, 12)
    served: list[Tensor] = []
    stop = threading.Event()

    def serve() -> None:
        with torch.no_grad():
            while not stop.is_set():
                served.append(net(x))

    server = threading.Thread(target=serve)
    server.start()
    try:
        drawn = passes(net, "conv=0.3", x, 12)
    finally:
        stop.set()
        server.join()
    assert served
    assert all(torch.equal(output, plain) for output in served)
    assert torch.equal(drawn, expected)


def test_one_placement_at_a_time() -> None:
    net = zoo.cifar()
    with injected(net, "fc1=0.5"), refused("model") as caught, injected(net, "fc1=0.5"):
        pass
    assert caught.value.received == "Cifar with noise in it"
    with injected(net, "fc1=0.5"):
        net(zoo.images())


def test_gradients_flow_through_noise() -> None:
    net, x = zoo.cifar(), zoo.images().requires_grad_()
    with injected(net, "all=0.3"):
        net(x).sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().sum()) > 0
    assert net.conv1.weight.grad is not None


# --- regressions ------------------------------------------------------------------------------------------------------


def test_a_part_of_the_model_or_forward_itself_is_refused() -> None:
    """Without the model's own call there is no batch to key: silently plain would be the worst answer."""
    net = zoo.cifar()
    with injected(net, "fc1=0.5"):
        for around in (lambda: net.forward(zoo.images()), lambda: net.fc1(torch.zeros(1, 256))):
            with refused("model") as caught:
                around()
            assert "call model(...)" in caught.value.remedy


def test_a_batch_that_is_not_along_dimension_0_is_refused() -> None:
    net = zoo.encoder(False)
    with torch.no_grad(), injected(net, "encoder.layers.0.linear1=0.5"):
        net(zoo.sequences())
        net.batch_first = True  # from here on dimension 0 is what the layers count along
        with refused("encoder.layers.0.linear1") as caught:
            net(zoo.sequences())
    assert "encoder.layers.0.linear1@after_activation" in caught.value.what


# --- graphs of the model ----------------------------------------------------------------------------------------------


def _plain_net() -> tuple[nn.Module, Tensor]:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))).eval(), zoo.vectors(4)


GRAPHS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "jit.trace": lambda net, x: torch.jit.trace(net, x),
    "export": lambda net, x: torch.export.export(net, (x,), strict=False),
    "compile": lambda net, x: torch.compile(net, backend="eager")(x),
    "compile of a step": lambda net, x: torch.compile(lambda y: net(y).sum(), backend="eager")(x),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("ran_before", [False, True])
def test_a_graph_of_the_model_is_refused(name: str, ran_before: bool) -> None:
    net, x = _plain_net()
    with torch.no_grad(), injected(net, "0=.5") as noise:
        if ran_before:
            noise.at(ids=list("abcd"))
            net(x)
        with refused("model") as caught:
            GRAPHS[name](net, x)
        assert "eagerly" in str(caught.value)
        assert net(x).shape == (4, 3)  # the noise is still in it
    assert not net._forward_pre_hooks
    torch.testing.assert_close(torch.compile(net, backend="eager")(x), net(x))  # and outside it may be compiled


@pytest.mark.parametrize(
    "bake",
    [
        lambda net, x: torch.export.export(net, (x,), strict=True),
        lambda net, x: torch.compile(net, backend="eager", fullgraph=True)(x),
    ],
)
def test_torch_itself_refuses_whole_graphs_for_our_reason(bake: Callable[[nn.Module, Tensor], Any]) -> None:
    net, x = _plain_net()
    with torch.no_grad(), injected(net, "0=.5"), pytest.raises(Exception, match="must run eagerly"):
        bake(net, x)


def test_a_model_without_noise_may_be_exported() -> None:
    net, x = _plain_net()
    with torch.no_grad(), injected(net, "none", site_map=examine(net, Call.of(x))):
        program = torch.export.export(net, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), net(x))
