"""A MONAI U-Net: maps of uncertainty, and which image to look at first.

Blurred bright discs and dark squares on a noisy ground, some hardly darker or brighter than that; a small 2-D U-Net
with dropout learns to find them. The same calls take volumes; `dropscope predict` takes folders of NIfTI files.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from monai.networks.nets import UNet
from torch.nn.functional import avg_pool2d, cross_entropy

import dropscope as ds


def draw(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [n, 1, 32, 32] with a disc and a square each, and classes: 0 ground, 1 disc, 2 square."""
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    centre, radius = torch.randint(6, 26, (number, 2, 2, 1, 1)), torch.randint(3, 7, (number, 2, 1, 1))
    dy, dx = (y - centre[:, 0]).abs(), (x - centre[:, 1]).abs()
    disc, square = (dy**2 + dx**2)[:, 0] <= radius[:, 0] ** 2, torch.maximum(dy, dx)[:, 1] <= radius[:, 1]
    labels = torch.where(square, 2, torch.where(disc, 1, 0))
    contrast = torch.rand(number, 1, 1) + 0.1
    images = avg_pool2d((contrast * torch.tensor([0.0, 1.0, -1.0])[labels])[:, None], 3, 1, 1)
    return images + 0.15 * torch.randn(number, 1, 32, 32), labels


torch.manual_seed(0)
images, labels = draw(400)
model = UNet(2, 1, 3, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, dropout=0.1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(4):
    for batch in torch.randperm(360).split(20):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()

held_out, names = (images[360:], labels[360:]), ["ground", "disc", "square"]
measures = ["predictive_entropy", "bald", "plain_entropy"]
table = ds.uncertainty(model.eval(), "own", held_out, passes=30, measures=measures[:1], class_names=names)
print(table.sort_values("predictive_entropy", ascending=False).head(3).round(3).drop(columns="id").to_string())

found = ds.maps(model, "own", images[360:], passes=30, measures=measures)
right = found["prediction"] == labels[360:]
print(f"{(~right).float().mean():.1%} of the pixels are wrong; AUC-PR of finding them:")
for name in measures:
    print(f"  {name:<18} {ds.scores.error_auprc(found[name].flatten(), right.flatten()):.3f}")

first = int(table.predictive_entropy.argmax())
shown = {"image": images[360 + first, 0], "label": labels[360 + first]}
shown |= {name: found[name][first] for name in ("prediction", "predictive_entropy")}
figure, axes = plt.subplots(1, 4, figsize=(8, 2.3), layout="constrained")
for axis, (title, picture) in zip(axes, shown.items(), strict=True):
    axis.imshow(picture.numpy(), cmap="magma" if "entropy" in title else "gray")
    axis.set_title(title, fontsize=9)
    axis.axis("off")
figure.savefig("monai_unet.png", dpi=120)
