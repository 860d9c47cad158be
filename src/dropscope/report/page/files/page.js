"use strict";
const CONTENT = JSON.parse(document.getElementById("data").textContent);
const ROOT = document.documentElement;

function themes() {
  const button = document.getElementById("theme"), order = ["auto", "light", "dark"], looks = { auto: "◐", light: "☀", dark: "☾" };
  let theme = "auto";
  const set = (name) => {
    theme = name;
    name === "auto" ? ROOT.removeAttribute("data-theme") : ROOT.setAttribute("data-theme", name);
    button.textContent = looks[name];
    button.setAttribute("aria-label", `Colours: ${name === "auto" ? "automatic" : name}`);
    document.dispatchEvent(new Event("themechange"));
  };
  try { if (order.includes(localStorage.getItem("dropscope-theme"))) set(localStorage.getItem("dropscope-theme")); } catch { /* no storage */ }
  button.addEventListener("click", () => {
    set(order[(order.indexOf(theme) + 1) % 3]);
    try { localStorage.setItem("dropscope-theme", theme); } catch { /* no storage */ }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
}

function tabs() {
  const all = [...document.querySelectorAll('[role="tab"]')];
  const select = (tab, focus) => {
    for (const one of all) {
      const on = one === tab;
      one.setAttribute("aria-selected", on);
      one.tabIndex = on ? 0 : -1;
      document.getElementById(one.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
    show();
  };
  all.forEach((tab, n) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select(all[(n + step + all.length) % all.length], true);
    });
  });
}

function pictures(holder, gallery) {
  const share = make("input", { type: "range", min: 0, max: 50, step: 1, value: gallery.share });
  const said = make("output", {});
  const lanes = [["Would pass", "worse"], ["Would be deferred", "better"]].map(([title]) => {
    const list = make("ul", { class: gallery.texts ? "shots texts" : "shots" }), head = make("h3", {}, title);
    return { list, head, title, box: make("div", {}, head, list) };
  });
  const cards = gallery.examples.map((example) => {
    const look = example.image ? make("img", { src: example.image, alt: "", class: example.small ? "small" : "" }) : null;
    const words = example.text ? make("blockquote", {}, example.text) : null;
    return make("li", {}, look, words, make("p", {}, example.said, make("small", { title: example.name }, example.detail)));
  });
  const update = () => {
    said.textContent = `${share.value} %`;
    const counts = [0, 0];
    lanes.forEach((lane) => lane.list.replaceChildren());
    gallery.examples.forEach((example, n) => {
      const lane = example.rank < share.value / 100 ? 1 : 0;
      lanes[lane].list.append(cards[n]);
    });
    gallery.ranks.forEach((rank) => { counts[rank < share.value / 100 ? 1 : 0] += 1; });
    lanes.forEach((lane, i) => { lane.head.textContent = `${lane.title}: ${counts[i]} of ${gallery.ranks.length} errors`; });
  };
  share.addEventListener("input", update);
  holder.append(make("div", { class: "controls" }, labelled("Deferred, the most uncertain first", share), said), make("div", { class: "lanes" }, ...lanes.map((lane) => lane.box)));
  update();
}

async function volume(holder, view) {
  const planes = {};
  for (const layer of view.layers) planes[layer.name] = await unpack(layer.packed);
  const [wide, tall, deep] = view.shape;
  const at = make("input", { type: "range", min: 0, max: deep - 1, value: view.start });
  const over = make("select", {}, ...view.overlays.map((name) => make("option", { value: name }, name)));
  const much = make("input", { type: "range", min: 0, max: 100, value: 70 });
  const marks = make("select", {}, ...["errors outlined", "no outline"].map((name) => make("option", {}, name)));
  const said = make("output", {});
  const canvases = ["scan", view.labelled ? "label and prediction" : "prediction", "uncertainty"].map((name) => ({ name, canvas: make("canvas", { width: wide, height: tall, role: "img", "aria-label": name }) }));
  const grid = make("div", { class: "viewer" }, ...canvases.map(({ name, canvas }) => make("figure", {}, canvas, make("figcaption", {}, name))));
  const hot = (v) => [255 * Math.min(1, v * 2.2), 255 * Math.max(0, Math.min(1, v * 2.2 - 0.7)), 255 * Math.max(0, v * 3 - 2.2)];
  const classes = [[0, 0, 0], [86, 180, 233], [230, 159, 0], [0, 158, 115], [204, 121, 167], [240, 228, 66]];
  const update = () => {
    const z = +at.value, start = z * wide * tall;
    said.textContent = `slice ${z + 1} of ${deep}`;
    canvases.forEach(({ canvas }, which) => {
      const pen = canvas.getContext("2d"), image = pen.createImageData(wide, tall), share = which === 0 ? 0 : much.value / 100;
      for (let i = 0; i < wide * tall; i++) {
        const grey = planes.image[start + i], label = planes.label[start + i], said = planes.prediction[start + i];
        let colour = [grey, grey, grey];
        if (which === 1 && (label || said)) {
          const paint = classes[(said || label) % classes.length], part = share * (label === said ? 0.55 : 0.9);
          const wrong = label !== said ? [213, 40, 40] : paint;
          colour = colour.map((v, c) => v * (1 - part) + wrong[c] * part);
        }
        if (which === 2) {
          const value = planes[over.value][start + i] / 255;
          colour = colour.map((v, c) => v * (1 - share * Math.min(1, value * 1.6)) + hot(value)[c] * share * Math.min(1, value * 1.6));
          if (marks.selectedIndex === 0 && label !== said) {
            const inner = i % wide > 0 && planes.label[start + i - 1] !== planes.prediction[start + i - 1] && planes.label[start + i + 1] !== planes.prediction[start + i + 1]
              && planes.label[start + i - wide] !== planes.prediction[start + i - wide] && planes.label[start + i + wide] !== planes.prediction[start + i + wide];
            if (!inner) colour = [90, 220, 255];
          }
        }
        image.data.set([...colour, 255], i * 4);
      }
      pen.putImageData(image, 0, 0);
    });
  };
  for (const control of [at, over, much, marks]) control.addEventListener("input", update);
  holder.append(make("h3", {}, view.title), make("div", { class: "controls" }, labelled("Slice", at), said, labelled("Uncertainty", over), labelled("Strength", much), view.labelled ? labelled("Wrong voxels", marks) : null), grid);
  update();
  holder.dataset.ready = "yes";
}

const KINDS = { curves: drawCurves, intervals: drawIntervals, network: drawNetwork, explorer: showExplorer, pictures, volume };
function show() {
  for (const holder of document.querySelectorAll("[data-item]")) {
    if (holder.dataset.drawn || holder.closest("[hidden]")) continue;
    holder.dataset.drawn = "yes";
    const item = CONTENT[holder.dataset.item];
    KINDS[item.kind](holder, item);
  }
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = button.parentNode.querySelector("code").textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "select and copy"; }
  });
}
themes();
tabs();
show();
ROOT.dataset.ready = "yes";
