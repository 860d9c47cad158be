"""NIfTI files, small segmentation networks and passes by hand, for tests of the room `volumes`."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from dropscope.injection.injector import injected
from dropscope.model.inputs import Call, id_keys
from dropscope.volumes import windows

AFFINE = np.array([[-0.7, 0.1, 0.0, 90.0], [0.1, 0.8, 0.0, -126.0], [0.0, 0.0, 2.0, -72.0], [0, 0, 0, 1]])
PLACEMENT = "0=0.4,2=0.4"


def net(channels=1, classes=3, dims=3, seed=0):
    torch.manual_seed(seed)
    conv = (nn.Conv2d, nn.Conv3d)[dims - 2]
    layers = [conv(channels, 6, 3, padding=1), nn.ReLU(), conv(6, 6, 3, padding=1), nn.ReLU(), conv(6, classes, 1)]
    made = nn.Sequential(*layers).eval()
    with torch.no_grad():
        made[-1].weight.mul_(10)
    return made


def sure_net(seed=0):
    """A network that says much the same under noise."""
    made = net(seed=seed)
    with torch.no_grad():
        made[-1].weight.mul_(20)
        made[-1].bias.zero_()
    return made


def write(path, shape=(9, 8, 7), seed=0, affine=AFFINE, kind=None, values=None):
    import nibabel

    values = np.random.default_rng(seed).normal(100, 30, shape).astype(np.float32) if values is None else values
    image = (kind or nibabel.Nifti1Image)(values, affine)
    image.header.set_xyzt_units("mm", "sec")
    image.set_qform(affine, 1)
    image.set_sform(affine, 2)
    nibabel.save(image, path)
    return path


def maps_in(folder):
    import nibabel

    return {path.name: np.asarray(nibabel.load(path).dataobj) for path in sorted(Path(folder).glob("*.nii.gz"))}


def by_hand(model, image, found, passes, placement=PLACEMENT, seed=0):
    """Every pass of a whole volume, window by window alone, averaged where they overlap: `[passes, 1, C, *shape]`."""
    key = int(Call((image[None],)).keys()[0])
    padded = windows.pad(image, found)
    crop = tuple(slice(b, b + n) for b, n in zip(found.before, found.shape, strict=True))
    every = []
    with torch.no_grad(), injected(model, placement, seed) as noise:
        for number in range(passes):
            total, count = 0.0, torch.zeros(found.padded)
            for origin in found.origins():
                at = tuple(slice(o, o + s) for o, s in zip(origin, found.size, strict=True))
                given = padded[(slice(None), *at)]
                noise.at(pass_=number, ids=id_keys([f"{key}:{origin}"]))
                p = model(given.squeeze(-1)[None] if found.flat else given[None]).softmax(1)[0]
                whole = torch.zeros(len(p), *found.padded)
                whole[(slice(None), *at)] = p.unsqueeze(-1) if found.flat else p
                total, count = total + whole, count + (whole.sum(0) > 0)
            every.append((total / count)[(slice(None), *crop)])
    return torch.stack(every).unsqueeze(1)
