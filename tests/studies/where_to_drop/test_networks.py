"""EffNet: its shape, and the sites that stand for the layers of the paper."""

from __future__ import annotations

import pytest
import torch

import dropscope as ds
from dropscope.studies.where_to_drop.networks import EFFNET_LAYERS, EFFNET_SITES, EffNet


@pytest.fixture(scope="module")
def small_net() -> EffNet:
    """A narrow EffNet whose BatchNorms have seen data and have shifts and scales of their own."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        net = EffNet((4, 6, 8, 10))
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
                module.momentum = 1.0
        net(torch.randn(64, 1, 16, 16, generator=generator))
    return net.eval()


def test_effnet_is_the_papers(small_net: EffNet) -> None:
    net = EffNet().eval()
    shapes = {}
    for name in (*EFFNET_LAYERS, "pool"):
        net.get_submodule(name).register_forward_hook(
            lambda _, args, out, name=name: shapes.update({name: tuple(out.shape[1:])})
        )
    assert net(torch.zeros(1, 1, 200, 200)).shape == (1, 2)
    assert shapes == {
        "stem": (32, 200, 200), "block1": (64, 100, 100), "block2": (128, 50, 50), "block3": (256, 25, 25),
        "pool": (256, 1, 1),
    }  # fmt: skip
    assert net(torch.zeros(1, 1, 224, 224)).shape == (1, 2)
    kernels = [tuple(m.kernel_size) for m in net.block1.modules() if isinstance(m, torch.nn.Conv2d)]
    assert kernels == [(1, 1), (1, 3), (3, 1), (1, 2)]


def test_the_four_layers_are_sites_with_channel_masks(small_net: EffNet) -> None:
    x = torch.randn(12, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    y = torch.arange(12) % 2
    sites = {site.name: site for site in ds.find_sites(small_net, x)}
    assert [sites[layer].positions for layer in EFFNET_LAYERS] == [("output", "input")] * 4
    assert [name for name in sites if name in EFFNET_LAYERS] == list(EFFNET_LAYERS)
    ds.audit(small_net, "stem=0.5,block1=0.5,block2=0.5,block3=0.5", x).raise_if_failed()
    with torch.no_grad(), ds.injected(small_net, "block1=0.5"):
        values = []
        hook = small_net.block2.register_forward_pre_hook(lambda _, args: values.append(args[0]))
        small_net(x)
        hook.remove()
    off = (values[-1] == 0).flatten(2)
    assert torch.equal(off.all(2), off.any(2))  # whole feature maps
    assert 0 < off.all(2).float().mean() < 1
    run = ds.sweep(small_net, ds.PlacementGrid(EFFNET_LAYERS, rates=(0.3, 0.7)), (x, y), passes=5, keep="none")
    assert run.engine == "shared"
    assert run.rows.placement.nunique() == 3**4 - 1
    assert run.rows.aurc.notna().all()


def test_before_and_after_are_equal_and_neither_is_the_output(small_net: EffNet) -> None:
    x = torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(2))

    def passes(placement: str) -> torch.Tensor:
        with torch.no_grad(), ds.injected(small_net, placement):
            return torch.stack([small_net(x).softmax(1) for _ in range(4)])

    found = {at: torch.stack([passes(f"{site}=0.6") for site in EFFNET_SITES[at]]) for at in EFFNET_SITES}
    torch.testing.assert_close(found["before_activation"], found["after_activation"])
    for at in ("after_activation", "input"):
        assert (found[at] - found["output"]).abs().amax((1, 2, 3)).min() > 1e-4
    grids = [
        ds.PlacementGrid(EFFNET_SITES[position], rates=(0.5,)) for position in ("before_activation", "after_activation")
    ]
    run = ds.sweep(small_net, grids[0] + grids[1], (x, torch.arange(6) % 2), passes=3, keep="none", measures=["bald"])
    assert run.rows.equivalent_to.notna().sum() == 15
