"use strict";
const found = JSON.parse(document.getElementById("found").textContent);
const { labels } = found;
const preferred = matchMedia("(prefers-color-scheme: dark)");
const narrow = () => document.documentElement.clientWidth < 640;
const megabytes = (bytes) => bytes / 1e6;
const colours = ["#3b82d6", "#e07b39", "#7d8793", "#2f9e62"];
const ink = (dark) => (dark ? "#e6e8eb" : "#1c1f23");
const faint = (dark) => (dark ? "#363c44" : "#d5d9df");
const settings = () => ({ responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover" });
const axis = (more) => ({ automargin: true, gridcolor: faint(preferred.matches), linecolor: faint(preferred.matches), zeroline: false, ...more });
const powers = { type: "log", exponentformat: "power", dtick: 1 };
const layout = (more) => ({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { t: 30, r: 15, l: 20, b: 20 }, height: 420,
  font: { color: ink(preferred.matches), family: "system-ui, sans-serif", size: narrow() ? 11 : 13 },
  hoverlabel: { namelength: -1 }, legend: { orientation: "h", x: 0, y: -0.22, yanchor: "top" },
  modebar: { bgcolor: "rgba(0,0,0,0)", color: "#8a939e", activecolor: ink(preferred.matches) }, ...more,
});
const drawn = [];
const draw = (name, traces, more) => {
  drawn.push(name);
  return Plotly.newPlot(name, traces, layout(more), settings());
};
const points = (list, value, more) => ({
  x: list.map((point) => megabytes(point.bytes)), y: list.map(value), mode: "markers", type: "scatter",
  hovertemplate: "%{text}<br>%{x:.4g} MB, %{y:.3g}<extra></extra>", ...more,
});

// Where losses end at nothing, a logarithm has no place for them.
const front = found.front.filter((point) => point.loss > 0);
const measured = found.front.filter((point) => point.measured > 0);
const chosen = { bytes: found.bytes };
const tasks = document.getElementById("task") !== null;
const traces = [
  points(front, (point) => point.loss, { name: "sum of single changes", mode: "lines", text: front.map(() => "sum of single changes"), line: { color: colours[0], width: 2 } }),
  points(measured, (point) => point.measured, { name: "measured as a whole", text: measured.map(() => "measured as a whole"), marker: { color: colours[0], size: 8 } }),
  points(found.uniform, (point) => point.measured, { name: "one scheme for all", text: found.uniform.map((point) => point.scheme), marker: { symbol: "x", size: 8, color: colours[1] } }),
  points([chosen], () => found.whole.kl, { name: "found, held-out rows", text: ["found"], marker: { size: 16, symbol: "star", color: colours[3] },
    error_y: { type: "data", array: [found.whole.half_width], color: colours[3] } }),
  points([chosen], () => null, { name: "at the slider", text: ["at the slider"], marker: { size: 13, symbol: "circle-open", color: ink(preferred.matches), line: { width: 2 } } }),
];
const others = [...(found.rival ? [found.rival] : []), ...found.beside];
const beside = (value) => points(others, value, { name: "beside it, held-out rows", text: others.map((point) => point.name), marker: { symbol: "diamond", size: 10, color: colours[2] } });
if (others.length) traces.push(beside((point) => point.kl));
draw("front", traces, { xaxis: axis({ title: { text: "weight files (MB)" } }), yaxis: axis({ title: { text: "KL per token (nats)" }, ...powers }) });

if (tasks) {
  const grown = found.front.filter((point) => point.grown !== null);
  draw("task", [
    points(grown, (point) => point.grown, { name: "choices of the search", text: grown.map(() => "a choice of the search"), marker: { color: colours[0], size: 8 } }),
    points(found.uniform, (point) => point.grown, { name: "one scheme for all", text: found.uniform.map((point) => point.scheme), marker: { symbol: "x", size: 8, color: colours[1] } }),
    points([chosen], () => found.whole.grown, { name: "found, held-out rows", text: ["found"], marker: { size: 16, symbol: "star", color: colours[3] } }),
    ...(others.length ? [beside((point) => point.grown)] : []),
  ], { xaxis: axis({ title: { text: "weight files (MB)" } }), yaxis: axis({ title: { text: "growth of perplexity" }, tickformat: ".3~%", zeroline: true, zerolinecolor: faint(preferred.matches) }) });
}

if (found.looks.length) {
  const words = found.looks.map((look) => (look.kept ? "kept" : "not kept"));
  const tints = found.looks.map((look) => (look.kept ? colours[3] : colours[1]));
  const most = found.asked.max_loss;
  draw("looks", [points(found.looks, (look) => look.loss, { text: words, marker: { size: 9, color: tints },
    error_y: { type: "data", symmetric: false, array: found.looks.map((look) => look.bound - look.loss), arrayminus: found.looks.map(() => 0), color: colours[2] } })],
  { height: 320, xaxis: axis({ title: { text: "weight files (MB)" } }),
    yaxis: axis({ title: { text: found.asked.metric === "kl" ? "KL per token, and its bound" : "growth of perplexity, and its bound" }, tickformat: found.asked.metric === "kl" ? "" : ".1%" }),
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: most, y1: most, line: { dash: "dash", color: colours[1] } }] });
}

const schemes = found.schemes;
const losses = found.groups.map((group) => schemes.map((scheme) => {
  const one = group.candidates.find((candidate) => candidate.scheme === scheme);
  return one && one.loss > 0 ? Math.log10(one.loss) : null;
}));
const hovers = found.groups.map((group) => schemes.map((scheme) => {
  const one = group.candidates.find((candidate) => candidate.scheme === scheme);
  return one ? `${group.name}<br>${scheme}: KL ${one.loss.toPrecision(3)}, ${one.measured === null ? "by gradients" : "measured"}<br>${one.bytes.toLocaleString("en")} bytes` : "";
}));
draw("heat", [
  { z: losses, x: schemes, y: labels, type: "heatmap", colorscale: "Cividis", hoverongaps: false, text: hovers, hovertemplate: "%{text}<extra></extra>", xgap: 1, ygap: 1,
    colorbar: { orientation: "h", y: 1, yanchor: "bottom", thickness: 10, len: 1, title: { text: "log₁₀ KL", side: "top" } } },
  { x: [], y: labels, mode: "markers", type: "scatter", name: "gets", hoverinfo: "skip",
    marker: { symbol: "star", size: narrow() ? 9 : 12, color: "#ffffff", line: { color: "#000000", width: 1 } } },
], { height: 220 + 20 * labels.length, showlegend: false, margin: { t: 90, r: 15, l: 20, b: 20 },
  xaxis: axis({ type: "category", showgrid: false, tickangle: -90, tickfont: { size: 10 }, tickmode: "array", tickvals: schemes }),
  yaxis: axis({ type: "category", showgrid: false, autorange: "reversed", tickfont: { size: narrow() ? 9 : 11 }, tickmode: "array", tickvals: labels }) });

const pairs = found.groups.flatMap((group) => group.candidates.filter((one) => one.measured > 0 && one.second > 0).map((one) => ({ group, one })));
if (document.getElementById("scores")) {
  draw("scores", [{ x: pairs.map(({ one }) => one.second), y: pairs.map(({ one }) => one.measured), mode: "markers", type: "scatter", marker: { color: colours[0], size: 6, opacity: 0.8 },
    text: pairs.map(({ group, one }) => `${group.name}, ${one.scheme}`), hovertemplate: "%{text}<br>%{x:.3g}, %{y:.3g}<extra></extra>" }],
  { height: 360, xaxis: axis({ title: { text: "by gradients, second order (nats)" }, ...powers }), yaxis: axis({ title: { text: "measured (nats)" }, ...powers }) });
}

const slider = document.getElementById("size");
const cells = document.querySelectorAll(".slid");
const show = (bytes, loss, picked, words) => {
  document.getElementById("at").textContent = `${megabytes(bytes).toPrecision(4)} MB, KL ${loss.toPrecision(3)}, ${words}`;
  document.getElementById("command").textContent = `--size ${bytes}`;
  Plotly.restyle("heat", { x: [picked] }, [1]);
  Plotly.restyle("front", { x: [[megabytes(bytes)]], y: [[loss > 0 ? loss : null]] }, [4]);
  cells.forEach((cell, place) => {
    cell.textContent = picked[place];
    cell.classList.toggle("parting", picked[place] !== found.groups[place].chosen);
  });
};
const slide = () => {
  const point = found.front[Number(slider.value)];
  show(point.bytes, point.loss, found.groups.map((group, place) => group.candidates[point.picks[place]].scheme), "the sum of single changes");
};
const back = () => {
  slider.value = String(found.front.reduce((best, point, place) => (
    Math.abs(point.bytes - found.bytes) < Math.abs(found.front[best].bytes - found.bytes) ? place : best), 0));
  show(found.bytes, found.whole.kl, found.groups.map((group) => group.chosen), "found, on held-out rows");
};
slider.max = String(found.front.length - 1);
slider.addEventListener("input", slide);
document.getElementById("back").addEventListener("click", back);
back();

const paint = (dark) => drawn.forEach((name) => Plotly.relayout(name, {
  "font.color": ink(dark), "xaxis.gridcolor": faint(dark), "yaxis.gridcolor": faint(dark), "xaxis.linecolor": faint(dark), "yaxis.linecolor": faint(dark),
}));
preferred.addEventListener("change", () => paint(preferred.matches));
// A sheet has a width of its own, of which no chart is told.
const fit = (width) => drawn.forEach((name) => Plotly.relayout(name, width ? { width, autosize: false } : { width: null, autosize: true }));
addEventListener("beforeprint", () => { paint(false); fit(680); });
addEventListener("afterprint", () => { paint(preferred.matches); fit(null); });
