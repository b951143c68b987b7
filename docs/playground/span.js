"use strict";
// The span on a grid of [rows, columns], as posattn_jax/ops/span.py and ops/attention/cpu/program.py have it.
const TILE = 8;  // queries that meet a key together, and keys that a query meets at once: TILE_QUERIES, LANES
// The time within a window as a share of that of all pairs, over the share of pairs computed: the least and the most of
// the runs that are committed, forward and with backward (benchmarks/results/cpu/rivals/windows.json, all_pairs.json).
const MEASURED = { least: 1.0, most: 1.9 };

const sum = numbers => numbers.reduce((a, b) => a + b, 0);
const indices = size => Array.from({ length: size }, (_, i) => i);
// L of Sigma = L L^T, from the standard deviation along each dimension and their correlation.
const factor = ([rows, columns], correlation) => [[rows, 0], [correlation * columns, Math.sqrt(1 - correlation * correlation) * columns]];
// ln G = -1/2 |L^-1 x|^2 of an offset, key minus query, x_i = offset_i / (S_i - 1).
function logGaussian(offset, grid, L) {
  const [x, y] = offset.map((o, i) => o / Math.max(grid[i] - 1, 1));
  const first = x / L[0][0], second = (y - L[1][0] * first) / L[1][1];
  return -0.5 * (first * first + second * second);
}
const reachOf = threshold => threshold > 0 ? Math.sqrt(-2 * Math.log(threshold)) : Infinity;
// ceil(sqrt(-2 ln threshold) sqrt(Sigma_ii) (S_i - 1)), at most S_i - 1; without a threshold all of the grid.
function halfSpan(L, threshold, grid) {
  return grid.map((size, i) => threshold <= 0 ? size - 1
    : Math.min(Math.ceil(reachOf(threshold) * Math.hypot(...L[i]) * (size - 1)), size - 1));
}
// Pairs of query and key inside the boxes of all queries, cut off at the borders.
const pairsInBoxes = (half, grid) =>
  half.reduce((pairs, h, i) => pairs * (grid[i] * (2 * h + 1) - h * (h + 1)), 1);
// Pairs whose G is not below the threshold.
function pairsInEllipses(L, threshold, grid) {
  const half = halfSpan(L, threshold, grid), least = threshold > 0 ? Math.log(threshold) : -Infinity;
  let pairs = 0;
  for (let y = -half[0]; y <= half[0]; y++)
    for (let x = -half[1]; x <= half[1]; x++)
      if (logGaussian([y, x], grid, L) >= least) pairs += (grid[0] - Math.abs(y)) * (grid[1] - Math.abs(x));
  return pairs;
}
// From and up to where along a dimension the keys lie that queries from `first` up to `last` meet.
const met = (first, last, half, size) => [Math.max(first - half, 0), Math.min(last + half, size)];
const extent = ([from, to]) => to - from;
// Of the tile of a query: the rows and columns of the keys that it meets, and how many pairs it computes for that query.
function tileOf([row, column], half, grid) {
  const start = column - column % TILE;
  const rows = met(row, row + 1, half[0], grid[0]), columns = met(start, start + TILE, half[1], grid[1]);
  return { rows, columns, keys: extent(rows) * Math.ceil(extent(columns) / TILE) * TILE };
}
// All pairs that the kernel computes: tiles of queries, also where they reach beyond the row, and keys in whole vectors.
function pairsComputed(half, grid) {
  const starts = indices(Math.ceil(grid[1] / TILE)).map(i => TILE * i);
  return TILE * sum(indices(grid[0]).flatMap(row => starts.map(start => tileOf([row, start], half, grid).keys)));
}
// The weights [rows, columns] that a query gives to keys whose scores are all equal, before the span.
function weightsOf(query, score, mode, L, threshold, grid) {
  const half = halfSpan(L, threshold, grid);
  const logits = indices(grid[0] * grid[1]).map(key => {
    const offset = [Math.floor(key / grid[1]) - query[0], key % grid[1] - query[1]];
    if (offset.some((o, i) => Math.abs(o) > half[i])) return -Infinity;
    const log = logGaussian(offset, grid, L);
    return mode === "multiply" ? Math.exp(log) * score : score + log;
  });
  const most = Math.max(...logits), weights = logits.map(logit => Math.exp(logit - most)), total = sum(weights);
  return weights.map(weight => weight / total);
}
// The time that is to be expected, as a share of that of all pairs: from and to.
const predicted = share => [MEASURED.least * share, MEASURED.most * share];
