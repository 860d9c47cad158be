"use strict";
// Every placement of a sweep: packed columns, filters, a sorted table of which only the visible rows exist, a scatter.
async function unpack(packed) {
  if (!packed.data) return null;
  const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Two planes of bytes, high then low; 65535 stands for what is not known.
function numbers(bytes, count, low, high) {
  const found = new Float32Array(count), scale = (high - low) / 65534;
  for (let i = 0; i < count; i++) {
    const code = bytes[i] * 256 + bytes[count + i];
    found[i] = code === 65535 ? NaN : low + code * scale;
  }
  return found;
}

async function readExplorer(table) {
  const [texts, rates, ...columns] = await Promise.all([table.placements, table.rates, ...table.columns.map((c) => c.packed)].map(unpack));
  const places = new TextDecoder().decode(texts).split("\n");
  const measures = table.measures.length, area = table.columns.findIndex((c) => c.name === "aurc");
  const read = table.columns.map((column, i) => ({ ...column, values: numbers(column.packed.data ? columns[i] : columns[area], column.per === "placement" ? places.length : places.length * measures, column.low, column.high) }));
  return { ...table, places, rates, read, count: places.length * measures, steps: measures };
}

// A row is (placement, measure): number = placement * measures + measure.
const valueOf = (data, column, row) => column.values[column.per === "placement" ? Math.floor(row / data.steps) : row];

function sortedBy(data, column) {
  if (column.order) return column.order;
  const keys = new Float32Array(data.count), order = new Uint32Array(data.count);
  for (let row = 0; row < data.count; row++) {
    const value = valueOf(data, column, row);
    keys[row] = Number.isNaN(value) ? Infinity : value;
    order[row] = row;
  }
  column.order = order.sort((a, b) => keys[a] - keys[b] || a - b);
  return column.order;
}

function matching(data, filter) {
  const sites = data.sites.length, fits = new Uint8Array(data.places.length);
  const words = filter.text.toLowerCase().split(/[\s]+/).filter(Boolean);
  for (let p = 0; p < fits.length; p++) {
    let ok = true;
    if (filter.site >= 0) {
      const rate = data.rates[p * sites + filter.site];
      ok = filter.rate > 0 ? rate === filter.rate : rate > 0;
    } else if (filter.rate > 0) {
      ok = false;
      for (let s = 0; s < sites && !ok; s++) ok = data.rates[p * sites + s] === filter.rate;
    }
    if (ok && filter.alone) {
      let used = 0;
      for (let s = 0; s < sites; s++) used += data.rates[p * sites + s] > 0;
      ok = used === 1;
    }
    if (ok && words.length) {
      const text = data.places[p].toLowerCase();
      ok = words.every((word) => text.includes(word));
    }
    fits[p] = ok;
  }
  return fits;
}

function chosenRows(data, filter, column, falling) {
  const fits = matching(data, filter), order = sortedBy(data, column), found = new Uint32Array(data.count);
  let count = 0;
  for (let i = 0; i < order.length; i++) {
    const row = order[falling ? order.length - 1 - i : i];
    if (fits[Math.floor(row / data.steps)] && (filter.measure < 0 || row % data.steps === filter.measure)) found[count++] = row;
  }
  return found.subarray(0, count);
}

async function showExplorer(holder, table) {
  const data = await readExplorer(table);
  const filter = { site: -1, rate: 0, measure: -1, text: "", alone: false };
  let column = data.read[0], falling = column.direction === "higher", rows = new Uint32Array(0);
  const option = (text, value) => make("option", { value }, text);
  const site = make("select", {}, option("any layer", -1), ...data.sites.map((s, i) => option(s.name, i)));
  const rate = make("select", {}, option("any rate", 0), ...data.levels.map((r, i) => option(r, i + 1)));
  const measure = make("select", {}, option("any measure", -1), ...data.measures.map((m, i) => option(m, i)));
  const text = make("input", { type: "search", placeholder: "such as conv1=0.3", spellcheck: "false" });
  const alone = make("select", {}, option("any number of layers", 0), option("one layer alone", 1));
  const count = make("output", { "aria-live": "polite" });
  holder.append(make("div", { class: "controls" },
    labelled("Layer", site), labelled("Rate", rate), labelled("Measure", measure), labelled("Layers", alone),
    labelled("Placement", text), labelled("Rows", count)));
  const canvas = make("canvas", { class: "scatter", role: "img", "aria-label": "Every row as a point; the table below has the same rows" });
  const axes = ["x", "y"].map((name) => make("select", {}, ...data.read.map((c, i) => option(c.title, i))));
  const legend = make("ul", { class: "legend" }, ...data.measures.map((name, i) => make("li", {}, make("i", { "--c": `var(--s${i % 6})` }), name)), make("li", {}, "+ one plain pass"));
  const plot = make("figure", {}, canvas, legend), say = tip(plot);
  const body = make("div", { class: "body", tabindex: 0, role: "rowgroup", "aria-label": "Rows; arrow keys scroll" });
  const heads = [make("span", { class: "text", role: "columnheader" }, "placement"), make("span", { class: "text", role: "columnheader" }, "measure")];
  const buttons = data.read.map((c) => make("button", { type: "button" }, c.title));
  data.read.forEach((c, i) => heads.push(make("span", { role: "columnheader" }, buttons[i])));
  const shape = `minmax(220px, 3fr) minmax(120px, 1.3fr) repeat(${data.read.length}, minmax(84px, 1fr))`;
  const grid = make("div", { class: "grid", role: "table", "aria-label": "Every placement", "aria-rowcount": data.count, "--columns": shape, "--least": `${360 + 90 * data.read.length}px` },
    make("div", { class: "sideways" }, make("div", { class: "inner" }, make("div", { role: "rowgroup" }, make("div", { class: "row head", role: "row" }, ...heads)), body)));
  const high = 30, spacer = make("div", { role: "presentation" });
  holder.append(make("div", { class: "controls" }, labelled("Across", axes[0]), labelled("Up", axes[1])), plot, make("br", {}), grid);
  const format = (c, value) => (Number.isNaN(value) ? "–" : c.form === "times" ? `${value < 100 ? value.toFixed(1) : value.toFixed(0)}×` : c.form === "signed" ? signed(value) : value.toFixed(4));

  const paint = () => {
    const first = Math.max(0, Math.floor(body.scrollTop / high) - 4), last = Math.min(rows.length, first + Math.ceil(body.clientHeight / high) + 8);
    const shown = [];
    for (let i = first; i < last; i++) {
      const row = rows[i], place = data.places[Math.floor(row / data.steps)];
      const cells = data.read.map((c) => make("span", { role: "cell" }, format(c, valueOf(data, c, row))));
      const line = make("div", { class: "row", role: "row", "aria-rowindex": i + 2 }, make("span", { class: "text", role: "cell", title: place }, place), make("span", { class: "text", role: "cell" }, data.measures[row % data.steps]), ...cells);
      line.style.top = `${i * high}px`;
      shown.push(line);
    }
    spacer.style.height = `${rows.length * high}px`;
    body.replaceChildren(spacer, ...shown);
  };

  let spots = null;
  const scatter = () => {
    const wide = plot.clientWidth, tall = 300, ratio = window.devicePixelRatio || 1;
    if (!wide) return;
    canvas.width = wide * ratio; canvas.height = tall * ratio;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas), ink = style.getPropertyValue("--soft"), faint = style.getPropertyValue("--line");
    pen.scale(ratio, ratio);
    const [cx, cy] = axes.map((axis) => data.read[axis.value]), m = { l: 56, r: 12, t: 20, b: 34 };
    const pad = (c) => { const extra = (c.high - c.low || 1) * 0.03; return [c.low - extra, c.high + extra]; };
    const [x0, x1] = pad(cx), [y0, y1] = pad(cy);
    const x = (v) => m.l + ((v - x0) / (x1 - x0)) * (wide - m.l - m.r), y = (v) => tall - m.b - ((v - y0) / (y1 - y0)) * (tall - m.t - m.b);
    pen.font = "12px system-ui, sans-serif"; pen.fillStyle = ink; pen.strokeStyle = faint;
    for (const at of ticks(y0, y1, 5)) { pen.beginPath(); pen.moveTo(m.l, y(at)); pen.lineTo(wide - m.r, y(at)); pen.stroke(); pen.textAlign = "right"; pen.fillText(short(at), m.l - 8, y(at) + 4); }
    for (const at of ticks(x0, x1, Math.floor(wide / 110))) { pen.textAlign = "center"; pen.fillText(short(at), x(at), tall - m.b + 16); }
    pen.textAlign = "left"; pen.fillText(cy.title, 4, 12); pen.textAlign = "right"; pen.fillText(cx.title, wide - m.r, tall - 3);
    const size = rows.length > 20000 ? 1.5 : rows.length > 2000 ? 2.2 : 4.5;
    const colours = data.measures.map((_, i) => style.getPropertyValue(`--s${i % 6}`));
    pen.globalAlpha = rows.length > 2000 ? 0.45 : 0.8;
    spots = { at: new Int32Array(Math.ceil(wide / 6) * Math.ceil(tall / 6)).fill(-1), wide: Math.ceil(wide / 6) };
    for (let step = 0; step < data.steps; step++) {
      pen.fillStyle = colours[step];
      for (const row of rows) {
        if (row % data.steps !== step) continue;
        const a = x(valueOf(data, cx, row)), b = y(valueOf(data, cy, row));
        if (!(a >= 0 && b >= 0)) continue;
        pen.fillRect(a - size / 2, b - size / 2, size, size);
        spots.at[Math.floor(b / 6) * spots.wide + Math.floor(a / 6)] = row;
      }
    }
    const plain = data.plain;
    if (plain && plain[cx.name] !== undefined && plain[cy.name] !== undefined) {
      const a = x(plain[cx.name]), b = y(plain[cy.name]);
      pen.globalAlpha = 1; pen.strokeStyle = style.getPropertyValue("--ink"); pen.lineWidth = 2;
      pen.beginPath(); pen.moveTo(a - 7, b); pen.lineTo(a + 7, b); pen.moveTo(a, b - 7); pen.lineTo(a, b + 7); pen.stroke();
    }
    pen.globalAlpha = 1;
  };
  canvas.onpointermove = (event) => {
    if (!spots) return;
    const box = canvas.getBoundingClientRect(), a = event.clientX - box.left, b = event.clientY - box.top;
    let found = -1;
    for (let radius = 0; radius < 3 && found < 0; radius++)
      for (let dy = -radius; dy <= radius && found < 0; dy++)
        for (let dx = -radius; dx <= radius && found < 0; dx++) found = spots.at[(Math.floor(b / 6) + dy) * spots.wide + Math.floor(a / 6) + dx] ?? -1;
    if (found < 0) return say(null);
    say([data.places[Math.floor(found / data.steps)], data.measures[found % data.steps], ...data.read.map((c) => `${c.title} ${format(c, valueOf(data, c, found))}`)].join("\n"), a, b);
  };
  canvas.onpointerleave = () => say(null);

  const update = () => {
    Object.assign(filter, { site: +site.value, rate: +rate.value, measure: +measure.value, text: text.value, alone: alone.value === "1" });
    rows = chosenRows(data, filter, column, falling);
    count.textContent = `${rows.length.toLocaleString("en")} of ${data.count.toLocaleString("en")}`;
    grid.setAttribute("aria-rowcount", rows.length + 1);
    buttons.forEach((button, i) => {
      const by = data.read[i] === column;
      button.textContent = data.read[i].title + (by ? (falling ? " ▾" : " ▴") : "");
      by ? button.parentNode.setAttribute("aria-sort", falling ? "descending" : "ascending") : button.parentNode.removeAttribute("aria-sort");
    });
    body.scrollTop = 0;
    paint();
    requestAnimationFrame(scatter);
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => {
    falling = data.read[i] === column ? !falling : data.read[i].direction === "higher";
    column = data.read[i];
    update();
  }));
  for (const control of [site, rate, measure, alone]) control.addEventListener("change", update);
  text.addEventListener("input", update);
  axes[0].value = Math.max(0, data.read.findIndex((c) => c.name === "accuracy"));
  axes[1].value = 0;
  axes.forEach((axis) => axis.addEventListener("change", scatter));
  body.addEventListener("scroll", paint, { passive: true });
  body.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: high, ArrowUp: -high, PageDown: body.clientHeight, PageUp: -body.clientHeight, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = moves[event.key];
    body.scrollTop = to === Infinity ? body.scrollHeight : to === -Infinity ? 0 : body.scrollTop + to;
  });
  new ResizeObserver(() => { paint(); scatter(); }).observe(plot);
  document.addEventListener("themechange", scatter);
  update();
  holder.dataset.ready = "yes";
}
