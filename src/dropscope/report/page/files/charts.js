"use strict";
// Charts as SVG, drawn at the width of their figure. Every text goes through textContent.
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function labelled(name, control) {
  control.setAttribute("aria-label", name);
  return make("label", {}, name, control);
}

function draw(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

const short = (value) => Number(value.toPrecision(6)).toString().replace("-", "−");
const signed = (value, digits = 4) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);

function tip(figure) {
  const box = make("div", { class: "tip", hidden: true, role: "status" });
  figure.append(box);
  return (text, x, y) => {
    box.hidden = text === null;
    if (text === null) return;
    box.textContent = text;
    const wide = figure.clientWidth;
    box.style.left = `${Math.max(0, Math.min(x + 14, wide - box.offsetWidth))}px`;
    box.style.top = `${Math.max(0, y - box.offsetHeight - 10)}px`;
  };
}

function redrawn(figure, render) {
  let last = 0;
  const again = () => {
    const wide = figure.clientWidth;
    if (wide && Math.abs(wide - last) > 2) { last = wide; render(wide); }
  };
  new ResizeObserver(again).observe(figure);
  again();
}

function frame(svg, chart, wide, high, margin, x, y) {
  const axis = draw("g", { class: "axis" });
  for (const at of ticks(chart.y0, chart.y1, 5)) {
    axis.append(draw("line", { x1: margin.left, x2: wide - margin.right, y1: y(at), y2: y(at) }));
    axis.append(draw("text", { x: margin.left - 8, y: y(at) + 4, "text-anchor": "end" }, short(at)));
  }
  for (const at of ticks(chart.x0, chart.x1, Math.max(3, Math.floor(wide / 110)))) {
    axis.append(draw("text", { x: x(at), y: high - margin.bottom + 18, "text-anchor": "middle" }, short(at)));
  }
  axis.append(draw("text", { class: "label", x: margin.left, y: 12 }, chart.y_label));
  axis.append(draw("text", { class: "label", x: wide - margin.right, y: high - 4, "text-anchor": "end" }, chart.x_label));
  svg.append(axis);
}

function tone(line, number) { return line.plain ? "var(--plain)" : `var(--s${number % 6})`; }

function drawCurves(figure, chart) {
  const high = 300, margin = { left: 44, right: 10, top: 24, bottom: 42 };
  const svg = draw("svg", { role: "img", "aria-label": chart.title, height: high });
  const legend = make("ul", { class: "legend" });
  figure.prepend(svg);
  svg.after(legend);
  let number = -1;
  const colours = chart.lines.map((line) => tone(line, line.plain ? 0 : ++number));
  chart.lines.forEach((line, i) => legend.append(make("li", {}, make("i", { class: line.plain ? "dashed" : "", "--c": colours[i] }), line.name)));
  const say = tip(figure);
  redrawn(figure, (wide) => {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const x = (v) => margin.left + ((v - chart.x0) / (chart.x1 - chart.x0)) * (wide - margin.left - margin.right);
    const y = (v) => high - margin.bottom - ((Math.max(chart.y0, Math.min(v, chart.y1)) - chart.y0) / (chart.y1 - chart.y0)) * (high - margin.top - margin.bottom);
    frame(svg, chart, wide, high, margin, x, y);
    chart.lines.forEach((line, i) => {
      const points = line.y.map((v, n) => `${x(line.x[n]).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
      svg.append(draw("polyline", { points, fill: "none", stroke: colours[i], "stroke-width": line.plain ? 1.8 : 2.4, "stroke-linejoin": "round", "stroke-dasharray": line.plain ? "6 4" : "none" }));
    });
    const rule = draw("line", { y1: margin.top, y2: high - margin.bottom, stroke: "var(--faint)", "stroke-dasharray": "2 3", visibility: "hidden" });
    svg.append(rule);
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect(), at = event.clientX - box.left;
      const value = chart.x0 + ((at - margin.left) / (wide - margin.left - margin.right)) * (chart.x1 - chart.x0);
      if (value < chart.x0 || value > chart.x1) return say(null);
      rule.setAttribute("x1", at); rule.setAttribute("x2", at); rule.setAttribute("visibility", "visible");
      const said = chart.lines.map((line) => {
        let near = 0;
        line.x.forEach((v, n) => { if (Math.abs(v - value) < Math.abs(line.x[near] - value)) near = n; });
        return `${line.y[near].toFixed(1)} %  ${line.name}`;
      });
      say([`${chart.x_word} ${value.toFixed(0)} %`, ...said].join("\n"), at, event.clientY - box.top);
    };
    svg.onpointerleave = () => { say(null); rule.setAttribute("visibility", "hidden"); };
  });
}

function drawIntervals(figure, chart) {
  const svg = draw("svg", { role: "img", "aria-label": chart.title });
  figure.prepend(svg);
  redrawn(figure, (wide) => {
    const beside = wide > 560, label = beside ? Math.min(330, wide * 0.42) : 0, step = beside ? 26 : 42;
    const high = chart.rows.length * step + 44, right = 14;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.setAttribute("height", high);
    const x = (v) => label + 12 + ((v - chart.x0) / (chart.x1 - chart.x0)) * (wide - label - right - 12);
    const axis = draw("g", { class: "axis" });
    for (const at of ticks(chart.x0, chart.x1, Math.max(3, Math.floor((wide - label) / 90)))) {
      axis.append(draw("line", { x1: x(at), x2: x(at), y1: 0, y2: high - 40 }));
      axis.append(draw("text", { x: x(at), y: high - 26, "text-anchor": "middle" }, short(at)));
    }
    axis.append(draw("text", { class: "label", x: wide - right, y: high - 6, "text-anchor": "end" }, chart.x_label));
    svg.append(axis, draw("line", { x1: x(chart.zero), x2: x(chart.zero), y1: 0, y2: high - 40, stroke: "var(--plain)", "stroke-dasharray": "5 4", "stroke-width": 1.4 }));
    chart.rows.forEach((row, n) => {
      const middle = n * step + (beside ? 14 : 30), group = draw("g", {});
      const better = chart.lower ? row.high < chart.zero : row.low > chart.zero, worse = chart.lower ? row.low > chart.zero : row.high < chart.zero;
      const colour = row.low === null ? "var(--faint)" : better ? "var(--good)" : worse ? "var(--bad)" : "var(--accent)";
      const longest = Math.floor((beside ? label : wide) / 7.2);
      const name = row.name.length > longest ? `${row.name.slice(0, longest - 1)}…` : row.name;
      group.append(draw("text", { x: beside ? label : 0, y: beside ? middle + 4 : middle - 12, "text-anchor": beside ? "end" : "start", fill: "var(--ink)", "font-size": 13 }, name));
      if (row.low !== null) {
        const [from, to] = [row.low, row.high].map((end) => Math.min(Math.max(end, chart.x0), chart.x1));
        group.append(draw("line", { x1: x(from), x2: x(to), y1: middle, y2: middle, stroke: colour, "stroke-width": 2.2, "stroke-linecap": "round" }));
      }
      const at = Math.min(Math.max(row.value, chart.x0), chart.x1);
      group.append(draw("circle", { cx: x(at), cy: middle, r: 4.6, fill: at === row.value ? colour : "var(--card)", stroke: colour, "stroke-width": 2 }));
      const ends = row.low === null ? "" : ` (${signed(row.low)} to ${signed(row.high)})`;
      group.append(draw("title", {}, `${row.name}: ${signed(row.value)}${ends}`));
      svg.append(group);
    });
  });
}

const NODES = {
  conv: "M4 12 L22 9 L22 29 L4 26 Z", attention: "M13 8 L23 19 L13 30 L3 19 Z", embedding: "M3 10 H23 V28 H3 Z M9.7 10 V28 M16.3 10 V28",
  residual: "M13 9 a10 10 0 1 0 0.01 0 Z M13 13 V25 M7 19 H19", head: "M3 10 H23 L18 28 H8 Z",
};

function node(site, first, last) {
  const svg = draw("svg", { viewBox: "0 0 26 38", "aria-hidden": "true" });
  if (!first) svg.append(draw("line", { x1: 13, x2: 13, y1: -6, y2: 10 }));
  if (!last) svg.append(draw("line", { x1: 13, x2: 13, y1: 28, y2: 44 }));
  svg.append(NODES[site.kind] ? draw("path", { d: NODES[site.kind] }) : draw("rect", { x: 3, y: 11, width: 20, height: 16, rx: 4 }));
  const about = [site.kind, site.shape].filter(Boolean).join(" · ");
  return make("span", {}, svg, make("span", { style: "display:block" }, make("b", {}, site.name), about ? make("small", {}, about) : null));
}

function drawNetwork(figure, chart) {
  const names = Object.keys(chart.values);
  const table = make("table", { class: "net" });
  const pick = make("select", {}, ...names.map((name) => make("option", { value: name, selected: name === chart.chosen }, name)));
  const render = () => {
    const values = chart.values[pick.value];
    const largest = Math.max(1e-12, ...values.flat().filter((v) => v !== null).map(Math.abs));
    const head = make("tr", {}, make("th", { scope: "col", class: "node" }, chart.row_title), ...chart.columns.map((name) => make("th", { scope: "col" }, name)));
    const rows = chart.sites.map((site, n) => make("tr", {}, make("th", { scope: "row", class: "node" }, node(site, n === 0, n === chart.sites.length - 1)),
      ...values[n].map((value) => {
        if (value === null) return make("td", { "--tint": "var(--line)", "--much": "0%" }, "");
        const good = chart.lower ? value < 0 : value > 0;
        return make("td", { "--tint": good ? "var(--good)" : "var(--bad)", "--much": `${((Math.abs(value) / largest) * 42).toFixed(0)}%` }, chart.signed ? signed(value, chart.digits) : value.toFixed(chart.digits));
      })));
    table.replaceChildren(make("caption", {}, chart.caption), make("thead", {}, head), make("tbody", {}, ...rows));
  };
  pick.addEventListener("change", render);
  render();
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": chart.title }, table);
  const scale = make("div", { class: "scale" }, "better", make("i", {}), "worse");
  if (names.length > 1) figure.append(make("div", { class: "controls" }, labelled(chart.choice, pick)));
  figure.append(scroll, scale);
}
