"""Image folders: files, labels and pixels; what is guessed is said, and what cannot be read is one clear line."""

import contextlib
import io
import os
import struct
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from dropscope.data.dataset import read_data
from dropscope.errors import BadInput
from dropscope.loading.images import ImageFiles
from dropscope.loading.pixels import Reading, parse_normalisation
from dropscope.loading.sources import load_data
from support.damage import damages, write_damaged
from support.errors import refused


def save(path: Path, shape: tuple[int, ...] = (4, 6), value: int = 51, dtype: type = np.uint8, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, dtype)).save(path, **options)
    return path


def images(data) -> torch.Tensor:
    (x,) = read_data(data.dataset).batches[0].call.args
    return x


def named(*names: str) -> nn.Module:
    model = nn.Linear(4, len(names))
    model.config = types.SimpleNamespace(id2label=dict(enumerate(names)))
    return model


# --- pixels -----------------------------------------------------------------------------------------------------------


def test_images_are_channels_first_in_0_to_1(write, tmp_path):
    save(tmp_path / "a.png", (4, 6, 3))
    save(tmp_path / "b.png", (4, 6, 4))  # an alpha channel is left out
    write("labels.csv", "file,label\na.png,1\nb.png,0\n")
    loaded = load_data(str(tmp_path))
    assert read_data(loaded.dataset).labels.tolist() == [1, 0]
    assert loaded.names == ["a.png", "b.png"]
    torch.testing.assert_close(images(loaded), torch.full((2, 3, 4, 6), 0.2))


def test_grey_images_of_8_and_16_bits_are_one_channel(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png", (4, 6), 13107, np.uint16)
    for size in (None, "2x5", (2, 5), 3):
        x = images(load_data(tmp_path, image_size=size))
        torch.testing.assert_close(x, torch.full_like(x, 0.2))
        assert x.shape[1] == 1


def test_palettes_transparency_and_one_bit_are_read_as_colours_and_greys(tmp_path):
    colours = Image.fromarray(np.full((4, 6, 3), (255, 0, 51), np.uint8))
    colours.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "a.png")
    clear = colours.convert("P", palette=Image.Palette.ADAPTIVE)
    clear.info["transparency"] = bytes([0])
    clear.save(tmp_path / "b.png")
    colours.convert("CMYK").save(tmp_path / "c.tif")
    x = images(load_data(tmp_path))
    torch.testing.assert_close(x[:, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]).expand(3, 3), atol=0.01, rtol=0)
    save(tmp_path / "bits" / "a.png", (4, 6), 1, bool)
    assert images(load_data(tmp_path / "bits")).unique().tolist() == [1.0]


def test_an_exif_rotation_is_not_applied_and_said(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "a.jpg", (4, 6), exif=exif)
    loaded = load_data(tmp_path)
    assert images(loaded).shape == (1, 1, 4, 6)
    assert any("EXIF" in remark for remark in loaded.remarks)


def test_grey_among_colours_becomes_colour(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png", (4, 6, 3))
    save(tmp_path / "c.png", (4, 6), 13107, np.uint16)
    loaded = load_data(tmp_path)
    torch.testing.assert_close(images(loaded), torch.full((3, 3, 4, 6), 0.2))
    assert any("grey" in remark for remark in loaded.remarks)


def test_grey_images_fit_a_model_of_three_channels(tmp_path):
    save(tmp_path / "a.png")
    assert images(load_data(tmp_path, nn.Conv2d(3, 2, 1))).shape == (1, 3, 4, 6)
    assert images(load_data(tmp_path, nn.Conv2d(1, 2, 1))).shape == (1, 1, 4, 6)
    assert images(load_data(tmp_path, mean="imagenet")).shape == (1, 3, 4, 6)


def test_images_are_resized_on_request(tmp_path):
    save(tmp_path / "a.png", (4, 6))
    save(tmp_path / "b.png", (5, 5))
    assert images(load_data(tmp_path, image_size="3")).shape == (2, 1, 3, 3)
    assert images(load_data(tmp_path, image_size="2x7")).shape == (2, 1, 2, 7)
    with refused("image_size") as caught:
        load_data(tmp_path)
    assert caught.value.received == ["a.png: 6x4 grey", "b.png: 5x5 grey"]


def test_an_image_that_is_cut_off_is_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(noise).save(tmp_path / name)
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])  # the header is whole
    loaded = load_data(tmp_path)
    with refused(str(tmp_path / "b.png")):
        read_data(loaded.dataset)


# --- normalisation and transforms -------------------------------------------------------------------------------------


def test_mean_and_std_normalise(tmp_path):
    save(tmp_path / "a.png", (4, 6, 3))
    assert any("mean" in remark for remark in load_data(tmp_path).remarks)
    loaded = load_data(tmp_path, mean="0.2,0.1,0", std=(1, 0.1, 0.2))
    assert not loaded.remarks
    torch.testing.assert_close(images(loaded)[0, :, 0, 0], torch.tensor([0.0, 1.0, 1.0]))
    torch.testing.assert_close(images(load_data(tmp_path, mean=0.1, std=0.1)), torch.ones(1, 3, 4, 6))


def test_a_data_set_by_name_is_mean_and_std_at_once():
    both = parse_normalisation("cifar10", None)
    assert both == parse_normalisation(None, "CIFAR10") == parse_normalisation("cifar10", "cifar10")
    assert both == parse_normalisation(*both)


@pytest.mark.parametrize(
    ("mean", "std", "name"),
    [
        (0.5, None, "std"),
        (None, 0.5, "mean"),
        ("imagnet", None, "mean"),
        ("imagnet", "imagenet", "mean"),
        ((0.5, 0.5), 0.5, "mean"),
        (0.5, (0.5, 0.5, 0.5), "std"),
        (0.5, 0, "std"),
        (0.5, float("nan"), "std"),
        ("0.5;0.5", 1, "mean"),
        ("", "", "mean"),
        ({}, 1, "mean"),
    ],
)
def test_a_normalisation_that_makes_no_sense_is_refused(mean, std, name):
    with refused(name):
        parse_normalisation(mean, std)


def test_transforms_take_the_place_of_all_else(tmp_path, write):
    save(tmp_path / "a.png", (4, 6, 3))
    save(tmp_path / "b.png", (5, 5, 3))

    def side(image):
        assert image.mode == "RGB"
        return torch.full((1, 2, 2), float(image.width))

    loaded = load_data(tmp_path, transforms=side)
    assert images(loaded)[:, 0, 0, 0].tolist() == [6.0, 5.0]
    assert not loaded.remarks
    text = "import torch\ndef side(image):\n    return torch.full((1, 2, 2), float(image.width))\n"
    write("prepare.py", text + "def made():\n    return side\nclass Side:\n    def __call__(self, image):\n"
          "        return side(image)\nready = Side()\nnumber = 3\ndef two(a, b):\n    return a\n")  # fmt: skip
    for name in ("side", "made", "ready", "Side"):
        assert images(load_data(tmp_path, transforms=f"prepare.py:{name}"))[:, 0, 0, 0].tolist() == [6.0, 5.0]
    for name in ("number", "two", "sid"):
        with refused("transforms"):
            load_data(tmp_path, transforms=f"prepare.py:{name}")
    for options in ({"mean": "imagenet"}, {"image_size": 3}):
        with refused(*options):
            load_data(tmp_path, transforms=side, **options)


@pytest.mark.parametrize(
    "transforms", [lambda image: image, lambda image: 1 / 0, lambda image: torch.zeros(2, 3, 4, 5)]
)
def test_transforms_that_give_no_tensor_are_refused(tmp_path, transforms):
    save(tmp_path / "a.png")
    loaded = load_data(tmp_path, transforms=transforms)
    with refused("transforms"):
        read_data(loaded.dataset)


# --- class folders ----------------------------------------------------------------------------------------------------


def class_folders(root: Path, *names: str) -> Path:
    for i, name in enumerate(names):
        save(root / name, value=10 * i)
    return root


def test_sub_folders_are_classes_in_the_order_of_their_names(tmp_path):
    folder = class_folders(tmp_path, "dog/b.png", "dog/deep/a.png", "cat/z.PNG", "cat/.hidden.png", ".git/x.png")
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "empty").mkdir()
    save(folder / "stray.png")
    loaded = load_data(folder)
    assert loaded.names == ["cat/z.PNG", "dog/b.png", "dog/deep/a.png"]
    assert read_data(loaded.dataset).labels.tolist() == [0, 1, 1]
    assert loaded.class_names == ("cat", "dog")
    for said in ("notes.txt", "stray.png", "'empty'", "0 = cat, 1 = dog"):
        assert any(said in remark for remark in loaded.remarks), said


def test_folders_take_the_numbers_of_the_models_classes(tmp_path):
    folder = class_folders(tmp_path, "cat/a.png", "polar-bear/a.png")
    for known in ({"model": named("dog", "Polar Bear", "cat")}, {"class_names": ("dog", "polar_bear", "cat")}):
        loaded = load_data(folder, **known)
        assert read_data(loaded.dataset).labels.tolist() == [2, 1]
        assert len(loaded.class_names) == 3
        assert not any("numbered" in remark for remark in loaded.remarks)


def test_folders_that_are_not_the_models_classes(tmp_path):
    folder = class_folders(tmp_path, "cat/a.png", "dog/a.png")
    loaded = load_data(folder, named("n01", "n02"))
    assert read_data(loaded.dataset).labels.tolist() == [0, 1]
    assert any("'n01'" in remark for remark in loaded.remarks)
    assert load_data(folder, named("LABEL_0", "LABEL_1")).class_names == ("cat", "dog")
    with refused("data") as caught:
        load_data(folder, named("cat", "bird"))
    assert "'dog'" in str(caught.value.received)
    with refused("class_names"):
        load_data(folder, class_names=["cats", "dogs"])


def test_numbers_as_folder_names_are_sorted_as_texts_and_said(tmp_path):
    folder = class_folders(tmp_path, *(f"{i}/a.png" for i in range(11)))
    loaded = load_data(folder)
    assert loaded.class_names[:3] == ("0", "1", "10")
    assert any("10 comes before 2" in remark for remark in loaded.remarks)


def test_images_alone_have_no_labels(tmp_path):
    folder = class_folders(tmp_path, "b.png", "a.png")
    loaded = load_data(folder)
    assert loaded.names == ["a.png", "b.png"]
    assert loaded.class_names is None
    assert read_data(loaded.dataset).labels is None
    assert load_data(folder / "b.png").names == ["b.png"]
    inner = class_folders(tmp_path / "other", "all/a.png")
    assert read_data(load_data(inner).dataset).labels is None
    assert read_data(load_data(inner, class_names="one,all").dataset).labels.tolist() == [1]


def test_the_parts_of_a_data_set_are_no_classes(tmp_path):
    folder = class_folders(tmp_path, "train/cat/a.png", "val/cat/a.png")
    with refused("data") as caught:
        load_data(folder)
    assert "val" in caught.value.remedy


def test_links_that_lead_back_end(tmp_path):
    folder = class_folders(tmp_path, "cat/a.png", "dog/a.png")
    os.symlink(folder, folder / "cat" / "up")
    os.symlink("self.png", folder / "dog" / "self.png")
    loaded = load_data(folder)
    assert loaded.names == ["cat/a.png", "dog/a.png"]


# --- a table of labels ------------------------------------------------------------------------------------------------


def test_labels_of_a_table_may_be_class_names(write, tmp_path):
    class_folders(tmp_path, "a.png", "b.png")
    write("labels.csv", "file,label\nb.png,dog\na.png,cat\n")
    loaded = load_data(tmp_path, class_names=["dog", "cat"])
    assert loaded.names == ["b.png", "a.png"]
    assert read_data(loaded.dataset).labels.tolist() == [0, 1]
    with refused("row 1 of labels.csv, column 'label'") as caught:
        load_data(tmp_path)
    assert "class_names=('cat', 'dog')" in caught.value.remedy
    assert read_data(load_data(tmp_path, labelled=False).dataset).labels is None


def test_a_table_may_lie_elsewhere(write, tmp_path):
    class_folders(tmp_path, "pictures/a.png", "pictures/b.png")
    write("train.csv", "file_name,kind\na.png,3\n")
    loaded = load_data(tmp_path / "pictures", labels=tmp_path / "train.csv", label_column="kind")
    assert read_data(loaded.dataset).labels.tolist() == [3]


@pytest.mark.parametrize(
    ("table", "options", "about", "said"),
    [
        ("file,label\nc.png,1\n", {}, "row 1 of labels.csv", "'c.png'"),
        ("file,label\nlabels.csv,1\n", {}, "row 1 of labels.csv", "PNG or JPEG"),
        ("file,label\nfloat.tif,1\n", {}, "row 1 of labels.csv", "'float.tif' in mode F"),
        ("file,label\n../a.png,1\n", {}, "row 1 of labels.csv", "relative"),
        ("file,label\nx/../../a.png,1\n", {}, "row 1 of labels.csv", "relative"),
        ("file,label\n/etc/passwd,1\n", {}, "row 1 of labels.csv", "relative"),
        (f"file,label\n{'a' * 5000}.png,1\n", {}, "row 1 of labels.csv", "too long"),
        ("file,label\na.png,cat\n", {}, "row 1 of labels.csv, column 'label'", "'cat'"),
        (f"file,label\na.png,{10**19}\n", {}, "row 1 of labels.csv, column 'label'", "10000"),
        (f"file,label\na.png,{'9' * 400}\n", {}, "row 1 of labels.csv, column 'label'", "9999"),
        ("image,label\na.png,1\n", {}, "file", "labels.csv"),
        ("file,label\na.png,1\n", {"image_size": "0"}, "image_size", "224 or 200x320"),
        ("file,label\na.png,1\n", {"image_size": "big"}, "image_size", "224 or 200x320"),
        ("file,label\na.png,1\n", {"image_size": "99999999999"}, "image_size", "224 or 200x320"),
        ("file,label\na.png,1\n", {"image_size": "9" * 9999}, "image_size", "224 or 200x320"),
        ("file,label\na.png,1\n", {"label_column": "lable"}, "label_column", "Did you mean 'label'"),
    ],
)
def test_an_image_folder_with_a_fault_says_where(write, tmp_path, table, options, about, said):
    save(tmp_path / "a.png", (4, 6))
    Image.fromarray(np.zeros((4, 6), np.float32)).save(tmp_path / "float.tif")
    write("labels.csv", table)
    with refused(about) as caught:
        load_data(tmp_path, **options)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000


# --- files that mean harm, and folders that are none ------------------------------------------------------------------


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(*one) for one in chunks) + chunk(b"IEND", b"")


BOMB = zlib.compress(bytes(200 << 20), 9)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image",
        png(100_000, 100_000, (b"IDAT", zlib.compress(b"\0" * 99))),
        png(13_378, 13_378, (b"IDAT", zlib.compress(b"\0" * 99))),
        png(4, 6, (b"zTXt", b"Comment\0\0" + BOMB), (b"IDAT", zlib.compress(b"\0" * 30))),
        png(4, 6, (b"iCCP", b"icc\0\0" + BOMB), (b"IDAT", zlib.compress(b"\0" * 30))),
    ],
    ids=["empty", "text", "bomb", "large", "text chunk", "profile"],
)
def test_a_file_that_is_no_image_or_a_bomb_is_refused_at_its_header(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with refused("data") as caught:
        load_data(tmp_path)
    assert "a.png" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_was_not_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    for name in ("picture", tmp_path / "picture", "pictures/a.png", "p" * 300, "p\0", "pic/" * 2000):
        with refused("data") as caught:
            load_data(name)
        assert "not found" in str(caught.value)
    with refused("data") as caught:
        load_data("picturs")
    assert "'pictures'" in caught.value.remedy


def test_folders_without_images_are_refused(tmp_path):
    with refused("data"):
        load_data(tmp_path)
    (tmp_path / "scan.dcm").write_bytes(b"DICM")
    with refused("data") as caught:
        load_data(tmp_path)
    assert "scan.dcm" in str(caught.value)
    (tmp_path / "labels.csv").mkdir()
    with refused("labels"):
        load_data(tmp_path, labels=tmp_path / "labels.csv")


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_read(tmp_path):
    class Many:
        def __len__(self):
            return 10**12

        def __getitem__(self, index):
            assert index == 0
            return save(tmp_path / "a.png", (100, 100))

    with refused("data") as caught:
        ImageFiles(Many(), None, Reading(colour=False)).check_memory()
    assert "memory" in str(caught.value)


def _images() -> list[tuple[str, bytes]]:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 9, 3)).astype(np.uint8))
    found = []
    for kind, suffix in (("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("WEBP", "webp"), ("BMP", "bmp")):
        noise.save(content := io.BytesIO(), kind)
        found.append((suffix, content.getvalue()))
    return found


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(_images()), damages(2000))
def test_an_image_of_damaged_bytes_is_read_or_refused(tmp_path_factory, image, damage):
    path = write_damaged(tmp_path_factory.mktemp("damaged"), *image, damage)
    with contextlib.suppress(BadInput):
        load_data(path).dataset[0]
