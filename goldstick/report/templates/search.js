"use strict";
const found = JSON.parse(document.getElementById("found").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const ink = dark ? "#e6e6e6" : "#222222";
const look = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "sans-serif" } };
const options = { responsive: true, displaylogo: false };
const megabytes = (bytes) => bytes / 1e6;
const marked = { x: [megabytes(found.bytes)], y: [found.whole.kl], name: "chosen, held-out rows", mode: "markers",
  marker: { size: 14, symbol: "star" } };
const measured = found.front.filter((point) => point.measured !== null);
Plotly.newPlot("front", [
  { x: found.front.map((point) => megabytes(point.bytes)), y: found.front.map((point) => point.loss),
    name: "sum of single changes", mode: "lines" },
  { x: measured.map((point) => megabytes(point.bytes)), y: measured.map((point) => point.measured),
    name: "measured as a whole", mode: "markers" },
  { x: found.uniform.map((point) => megabytes(point.bytes)), y: found.uniform.map((point) => point.measured),
    text: found.uniform.map((point) => point.scheme), name: "one scheme for all", mode: "markers",
    marker: { symbol: "x" } },
  marked,
], { ...look, margin: { t: 10, r: 10 }, legend: { orientation: "h", y: -0.25 },
  xaxis: { title: { text: "weight files (MB)" }, type: "log" },
  yaxis: { title: { text: "KL per token (nats)" }, type: "log" } }, options);
const schemes = [];
for (const group of found.groups) for (const one of group.candidates) {
  if (!schemes.includes(one.scheme)) schemes.push(one.scheme);
}
const names = found.groups.map((group) => group.name);
const losses = found.groups.map((group) => schemes.map((scheme) => {
  const one = group.candidates.find((candidate) => candidate.scheme === scheme);
  return one && one.loss > 0 ? Math.log10(one.loss) : null;
}));
const stars = (picked) => ({ x: picked, y: names, mode: "markers", type: "scatter", name: "gets",
  marker: { symbol: "star", size: 9, color: ink } });
Plotly.newPlot("heat", [
  { z: losses, x: schemes, y: names, type: "heatmap", colorscale: "Viridis", colorbar: { title: { text: "log₁₀ KL" } } },
  stars(found.groups.map((group) => group.chosen)),
], { ...look, height: 160 + 22 * names.length, margin: { t: 10, r: 10 }, xaxis: { automargin: true, type: "category" },
  yaxis: { automargin: true, autorange: "reversed", tickfont: { size: 9 } } }, options);
const pairs = found.groups.flatMap((group) => group.candidates.filter((one) => one.measured && one.second));
Plotly.newPlot("scores", [{ x: pairs.map((one) => one.second), y: pairs.map((one) => one.measured), mode: "markers",
  type: "scatter" }],
{ ...look, margin: { t: 10, r: 10 }, xaxis: { title: { text: "by gradients, second order (nats)" }, type: "log" },
  yaxis: { title: { text: "measured (nats)" }, type: "log" } }, options);
const slider = document.getElementById("size");
const show = () => {
  const point = found.front[Number(slider.value)];
  document.getElementById("at").textContent =
    `${megabytes(point.bytes).toPrecision(4)} MB, KL ${point.loss.toPrecision(3)} by the sum of single changes`;
  const picked = found.groups.map((group, place) => group.candidates[point.picks[place]].scheme);
  Plotly.restyle("heat", { x: [picked] }, [1]);
};
slider.max = String(found.front.length - 1);
slider.addEventListener("input", show);
