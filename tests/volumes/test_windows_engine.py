"""Windows through either engine: the same maps and labels, whatever batches and slabs a volume is cut into."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dropscope.engine.session import open_session
from dropscope.measures import DEFAULT, TABLE
from dropscope.volumes.windows import VolumePrediction, bytes_per_voxel, plan_windows, predict_volume
from support import zoo

# One measure reads the plain pass too, the others do not.
MEASURES = [TABLE[name] for name in (*DEFAULT, "averaged_variance")]


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.b(torch.relu(self.a(x)))))


def predicted(
    model: nn.Module, placement: str, roi: tuple[int, ...], shape: tuple[int, ...], **options: object
) -> VolumePrediction:
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    session = open_session(model, image.new_ones(2, 1, *roi) * torch.tensor([0.5, 1.0]).view(2, *[1] * (len(roi) + 1)))
    (resolved,) = session.resolve([placement])
    return predict_volume(session, resolved, image, plan_windows(shape, roi, 0.25), MEASURES, 5, **options)  # type: ignore[arg-type]


CASES = {
    "volumes": (zoo.unet3d, "down1=.3,join=.2", (6, 6, 4), (9, 8, 6)),
    "late noise": (zoo.unet3d, "join=.4", (6, 6, 4), (9, 8, 6)),
    "slices": (lambda: zoo.seeded(Flat), "a=.3,b=.2", (6, 6), (9, 8, 3)),
    "a volume smaller than a window": (zoo.unet3d, "down1=.3", (6, 6, 4), (4, 6, 3)),
    "without noise": (zoo.unet3d, "none", (6, 6, 4), (9, 8, 6)),
}


def same(fast: VolumePrediction, slow: VolumePrediction) -> None:
    assert list(fast.maps) == list(slow.maps)
    for name, values in slow.maps.items():
        torch.testing.assert_close(fast.maps[name], values, atol=1e-5, rtol=0)
    # A voxel on the fence may fall either way; there is none here.
    assert torch.equal(fast.labels, slow.labels)


@pytest.mark.parametrize("name", CASES)
def test_the_shared_engine_gives_the_maps_of_the_loop(name: str) -> None:
    build, placement, roi, shape = CASES[name]
    model = build()
    same(*(predicted(model, placement, roi, shape, engine=engine) for engine in ("shared", "loop")))


def test_batches_and_slabs_change_nothing_in_the_shared_engine() -> None:
    model, placement, roi, shape = zoo.unet3d(), "down1=.3,join=.2", (6, 6, 4), (9, 8, 6)
    slow = predicted(model, placement, roi, shape)
    two_planes = 2 * bytes_per_voxel(MEASURES, 2) * shape[1] * shape[2]
    for options in ({"batch_size": 1}, {"batch_size": 100}, {"batch_size": 3, "memory": two_planes}):
        same(predicted(model, placement, roi, shape, engine="shared", **options), slow)


def test_passes_are_counted_for_every_window() -> None:
    counts = []
    for engine in ("shared", "loop"):
        ticks: list[int] = []
        predicted(zoo.unet3d(), "join=.4", (6, 6, 4), (9, 8, 6), engine=engine, tick=ticks.append)
        counts.append(sum(ticks))
    assert counts[0] == counts[1] == 5 * len(plan_windows((9, 8, 6), (6, 6, 4), 0.25).origins())
