"""Pages in Chromium: nothing fails, filters answer, names stay texts. Where there is no Chromium, nothing runs."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import dropscope as ds
from support.reported_runs import NASTY, large_run, small_run, stored_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page, with everything that it complained about."""

    def __init__(self, browser, path, **options):
        self.said, self.asked = [], []
        self.page = browser.new_page(**options)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def explorer(self):
        self.page.wait_for_selector(".explorer[data-ready]", state="attached")
        return self.page.locator(".explorer")

    def choose(self, label, value):
        self.page.locator(".explorer").get_by_label(label, exact=True).select_option(value)

    def count(self):
        return self.page.locator(".explorer output").text_content()


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_opens_without_a_complaint(browser, tmp_path, scheme, width):
    made = ds.write_report(small_run(), out=tmp_path / "run.html")
    opened = Opened(browser, made.path, color_scheme=scheme, viewport={"width": width, "height": 800})
    opened.explorer()
    assert opened.said == []
    assert opened.asked == [made.path.resolve().as_uri()]
    assert fits(opened.page)
    assert opened.page.locator("figure.curves polyline").count() == 2 + 4


def test_names_stay_texts(browser, tmp_path):
    made = ds.write_report(stored_run(tmp_path / NASTY.replace("/", "")), out=tmp_path / "run.html", title=NASTY)
    opened = Opened(browser, made.path)
    opened.explorer()
    assert opened.page.title() == NASTY
    assert opened.said == []


def test_filters_and_order(browser, tmp_path):
    opened = Opened(browser, ds.write_report(large_run(), out=tmp_path / "run.html").path)
    opened.explorer()
    assert opened.count() == "49,995 of 49,995"
    opened.choose("Layer", "layer2")
    opened.choose("Rate", "0.3")
    assert opened.count() == "5,000 of 49,995"  # the other three layers at ten levels each, five measures
    opened.choose("Measure", "bald")
    assert opened.count() == "1,000 of 49,995"
    opened.choose("Layers", "one layer alone")
    assert opened.count() == "1 of 49,995"
    assert opened.page.locator(".explorer .body .row").first.text_content().startswith("layer2=0.3bald")
    opened.choose("Layers", "any number of layers")
    opened.choose("Measure", "any measure")
    opened.page.get_by_role("button", name="accuracy").click()
    shown = opened.page.locator(".explorer .body .row").all()
    assert 10 < len(shown) < 60  # those in view alone
    values = [float(row.locator("span").nth(4).text_content()) for row in shown]
    assert values == sorted(values, reverse=True)
    assert opened.said == []


def test_a_keyboard_is_enough(browser, tmp_path):
    made = ds.write_report(small_run(), stored_run(tmp_path / "other"), out=tmp_path / "run.html")
    opened = Opened(browser, made.path)
    page = opened.page
    page.get_by_role("tab", name="sweep").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="other").get_attribute("aria-selected") == "true"
    assert page.locator("#chapter-1").is_visible()
    assert page.locator("#chapter-0").is_hidden()
    page.locator("#theme").press("Enter")
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.locator("#chapter-1 .explorer .body").focus()
    page.keyboard.press("End")
    assert opened.said == []


def test_errors_cross_over_with_the_share_that_is_deferred(browser, tmp_path):
    made = ds.write_report(small_run(), out=tmp_path / "run.html", data=torch.rand(240, 3, 16, 16))
    opened = Opened(browser, made.path)
    share = opened.page.get_by_label("Deferred, the most uncertain first")
    counts = []
    for value in ("0", "50"):
        share.evaluate(f"node => {{ node.value = {value}; node.dispatchEvent(new Event('input')); }}")
        counts.append(opened.page.locator(".lanes h3").all_text_contents())
    assert counts[0][1].startswith("Would be deferred: 0 of")
    assert not counts[1][1].startswith("Would be deferred: 0 of")
    assert opened.page.locator(".shots img").count() > 0
    assert opened.said == []


def test_volumes_are_looked_through(browser, tmp_path):
    label = np.zeros((8, 6, 4), np.uint8)
    label[2:5, 2:4, 3] = 1
    image = np.random.default_rng(0).random((1, 8, 6, 4), np.float32)
    tensors = {"image": image, "label": label, "prediction": 0 * label, "bald": label.astype(np.float32)}
    (tmp_path / "study.json").write_text("{}")
    (tmp_path / "summary.md").write_text("# Study\n\n1. **Keep one plain pass**: so.\n")
    save_file({f"0/{name}": values for name, values in tensors.items()}, tmp_path / "exhibits.safetensors")
    opened = Opened(browser, ds.write_report(tmp_path, out=tmp_path / "run.html").path)
    opened.page.wait_for_selector(".volume[data-ready]")
    assert opened.page.locator(".volume output").text_content() == "slice 4 of 4"
    opened.page.get_by_label("Slice", exact=True).press("ArrowLeft")
    assert opened.page.locator(".volume output").text_content() == "slice 3 of 4"
    assert opened.page.locator(".viewer canvas").count() == 3
    assert opened.said == []


def test_a_frame_runs_the_page(browser, tmp_path):
    path = tmp_path / "notebook.html"
    shown = ds.write_report(small_run(), out=None)._repr_html_()
    path.write_text(f"<!doctype html><style>h1{{color:red}}</style>{shown}", encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".explorer[data-ready]").wait_for(state="attached")
    colour = frame.locator("h1").evaluate("node => getComputedStyle(node).color")
    assert colour != "rgb(255, 0, 0)"
