"use strict";
// Part one of the page: a span, by offset and on the grid, and how many pairs it leaves.
const SLIDERS = ["sigmaRows", "sigmaColumns", "correlation", "threshold", "rows", "columns", "score"];
const PLACES = {
  middle: grid => grid.map(size => Math.floor((size - 1) / 2)), top: grid => [0, Math.floor((grid[1] - 1) / 2)],
  left: grid => [Math.floor((grid[0] - 1) / 2), 0], corner: () => [0, 0],
};
let query = [0, 0];

function readSpan() {
  const given = Object.fromEntries(SLIDERS.map(name => [name, Number($(name).value)]));
  const grid = [given.rows, given.columns], L = factor([given.sigmaRows, given.sigmaColumns], given.correlation);
  const { threshold, score } = given, mode = $("mode").value;
  return { ...given, grid, L, threshold, score, mode, half: halfSpan(L, threshold, grid) };
}
const number = (count, name) => count + " " + (count === 1 ? name.slice(0, -1) : name);
const whole = count => Math.round(count).toLocaleString("en");
const percent = (share, digits = 3) => Number((100 * share).toPrecision(digits)) + " %";

function tellSliders(span) {
  const inPositions = (sigma, size, name) => sigma.toFixed(2) + " = " + (sigma * (size - 1)).toFixed(1) + " " + name;
  const told = {
    sigmaRows: inPositions(span.sigmaRows, span.rows, "rows"),
    sigmaColumns: inPositions(span.sigmaColumns, span.columns, "columns"),
    correlation: span.correlation.toFixed(2) + (span.correlation ? "" : ": diagonal"),
    threshold: span.threshold.toFixed(2) + (span.threshold ? "" : ": no mask"),
    rows: number(span.rows, "rows"), columns: number(span.columns, "columns"), score: String(span.score),
  };
  for (const name of SLIDERS) {
    $(name + "Told").textContent = told[name];
    $(name).setAttribute("aria-valuetext", told[name]);
  }
}
// The curve G = threshold around a place, clipped by the canvas.
function ellipse(span, [row, column], wide, high) {
  const reach = reachOf(span.threshold), path = new Path2D();
  for (let i = 0; i <= 180; i++) {
    const z = [Math.cos(Math.PI * i / 90), Math.sin(Math.PI * i / 90)];
    const y = reach * span.L[0][0] * z[0], x = reach * (span.L[1][0] * z[0] + span.L[1][1] * z[1]);
    path.lineTo((column + 0.5 + x * (span.columns - 1)) * wide, (row + 0.5 + y * (span.rows - 1)) * high);
  }
  return path;
}
function around([row, column], [tall, broad], wide, high) {
  return box((column - broad) * wide, (row - tall) * high, (2 * broad + 1) * wide, (2 * tall + 1) * high);
}
function drawOutlines(span, place, { c, wide, high }) {
  if (span.threshold > 0) stroke(c, ellipse(span, place, wide, high));
  stroke(c, around(place, span.half, wide, high), [16, 10]);
  stroke(c, around(place, [0, 0], wide, high));
}
function drawByOffset(span) {
  const [tall, broad] = span.grid.map(size => 2 * size - 1), middle = span.grid.map(size => size - 1);
  const gaussian = indices(tall * broad).map(i =>
    Math.exp(logGaussian([Math.floor(i / broad) - middle[0], i % broad - middle[1]], span.grid, span.L)));
  drawOutlines(span, middle, drawCells($("byOffset"), tall, broad, VIRIDIS, gaussian));
  drawColourBar($("byOffsetBar"), VIRIDIS, [0, 0.25, 0.5, 0.75, 1]);
}
function drawOnGrid(span) {
  const weights = weightsOf(query, span.score, span.mode, span.L, span.threshold, span.grid), most = Math.max(...weights);
  const isInside = i => [Math.floor(i / span.columns), i % span.columns].every((at, d) => Math.abs(at - query[d]) <= span.half[d]);
  const drawn = drawCells($("onGrid"), ...span.grid, VIRIDIS, weights.map((weight, i) => isInside(i) ? weight / most : null));
  const { rows, columns } = tileOf(query, span.half, span.grid), { c, wide, high } = drawn;
  stroke(c, box(columns[0] * wide, rows[0] * high, extent(columns) * wide, extent(rows) * high), [3, 9]);
  drawOutlines(span, query, drawn);
  drawColourBar($("onGridBar"), VIRIDIS, [0, most / 2, most]);
  $("onGridTold").textContent = "Query: row " + (query[0] + 1) + ", column " + (query[1] + 1) + ". Weights of keys whose "
    + "scores are all " + span.score + ": the query's own is " + percent(weights[query[0] * span.columns + query[1]])
    + ", the smallest inside the box " + percent(Math.min(...weights.filter((_, i) => isInside(i)))) + ".";
}
function countPairs(span) {
  const { grid, half, L, threshold } = span, n = grid[0] * grid[1];
  const inBox = half.reduce((keys, h, i) => keys * extent(met(query[i], query[i] + 1, h, grid[i])), 1);
  const inEllipse = indices(n).filter(i => threshold <= 0 || logGaussian(
    [Math.floor(i / grid[1]) - query[0], i % grid[1] - query[1]], grid, L) >= Math.log(threshold)).length;
  const pairs = { all: n * n, computed: pairsComputed(half, grid), box: pairsInBoxes(half, grid),
    ellipse: pairsInEllipses(L, threshold, grid) };
  const ofQuery = { all: n, computed: tileOf(query, half, grid).keys, box: inBox, ellipse: inEllipse };
  for (const name in pairs) {
    const cells = [whole(ofQuery[name]), whole(pairs[name]), percent(pairs[name] / (n * n))];
    cells.forEach((text, i) => { $(name + "Pairs").cells[i + 1].textContent = text; });
  }
  return pairs.computed / (n * n);
}
function tellCost(span, share) {
  const [from, to] = predicted(share), small = span.rows * span.columns < 1024;
  const saved = to < 1 ? "between " + percent(from, 2) + " and " + percent(to, 2) + " of the time of all pairs"
    : "no certain saving, for " + percent(share) + " of all pairs are computed";
  $("cost").textContent = "Predicted, not measured: " + saved + "." + (small && to < 1
    ? " The grids measured have 1,024 positions and more; on a smaller one what is not by pair takes a larger share." : "");
}
function updateSpan() {
  const span = readSpan(), place = PLACES[$("place").value];
  query = place ? place(span.grid) : query.map((at, i) => Math.min(at, span.grid[i] - 1));
  tellSliders(span);
  drawByOffset(span);
  drawOnGrid(span);
  tellCost(span, countPairs(span));
  const [tall, broad] = span.half, sizes = span.half.map(h => 2 * h + 1);
  $("reach").textContent = "Half-span: " + number(tall, "rows") + " and " + number(broad, "columns") + " to each side, so "
    + sizes.join(" x ") + " of " + span.grid.map(size => 2 * size - 1).join(" x ") + " offsets are attended.";
}
function chooseQuery(cell) {
  query = cell;
  $("place").value = "chosen";
  updateSpan();
}
for (const name of [...SLIDERS, "mode", "place"]) $(name).oninput = updateSpan;
choosable($("onGrid"), () => readSpan().grid, () => query, chooseQuery);
updateSpan();
