"use strict";
// What both parts of the page draw with: colours, cells, outlines, and cells that are chosen.
const $ = id => document.getElementById(id);
// Colours from the lowest to the highest value, for every kind of sight: viridis, and blue to white to orange.
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const DIVERGING = ["#1b4f8a", "#5b93c4", "#f2f2f2", "#e08a3c", "#8f4300"];
const channels = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
function colour(palette, share) {
  const at = Math.min(Math.max(share, 0), 1) * (palette.length - 1), below = Math.min(Math.floor(at), palette.length - 2);
  const [from, to] = [channels(palette[below]), channels(palette[below + 1])];
  return from.map((value, i) => Math.round(value + (at - below) * (to[i] - value)));
}
// Three digits, of what is very small too.
const shown = value => value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)));

// Fills a canvas with cells [rows, columns] by their shares of the palette; null leaves a cell out.
function drawCells(canvas, rows, columns, palette, shares) {
  const cell = 720 / Math.max(rows, columns), small = new OffscreenCanvas(columns, rows), context = small.getContext("2d");
  const image = context.createImageData(columns, rows);
  shares.forEach((share, i) => {
    if (share !== null) image.data.set([...colour(palette, share), 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
  [canvas.width, canvas.height] = [columns, rows].map(count => Math.max(Math.round(cell * count), 48));
  canvas.style.width = canvas.width / 7.2 + "%";
  const c = canvas.getContext("2d");
  c.imageSmoothingEnabled = false;
  c.drawImage(small, 0, 0, canvas.width, canvas.height);
  return { c, wide: canvas.width / columns, high: canvas.height / rows };  // of a cell
}
// A line that is seen on every colour; solid, or in dashes.
function stroke(c, path, dash = []) {
  c.lineJoin = "round";
  for (const [style, width] of [["#000", 7], ["#fff", 3]]) {
    c.strokeStyle = style;
    c.lineWidth = width;
    c.setLineDash(style === "#fff" ? dash : []);
    c.stroke(path);
  }
}
function box(left, top, width, height) {
  const path = new Path2D();
  path.rect(left, top, width, height);
  return path;
}
function drawColourBar(element, palette, ticks) {
  const bar = document.createElement("div"), numbers = document.createElement("div");
  bar.className = "colours";
  bar.style.background = "linear-gradient(to right, " + palette.join(", ") + ")";
  numbers.className = "ticks";
  numbers.append(...ticks.map(tick => Object.assign(document.createElement("span"), { textContent: shown(tick) })));
  element.replaceChildren(bar, numbers);
}

// Where an arrow key leads from a cell [row, column]; null: it is no arrow key.
function step(key, [row, column], [rows, columns]) {
  const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
  const within = (value, size) => Math.min(Math.max(value, 0), size - 1);
  return by ? [within(row + by[0], rows), within(column + by[1], columns)] : null;
}
// Lets a cell of a canvas be chosen by touch, click and arrow keys, and where it is `hovered` by moving over it.
function choosable(canvas, size, chosen, choose, hovered = false) {
  const pointed = event => {
    const area = canvas.getBoundingClientRect(), [rows, columns] = size();
    const at = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    choose([at((event.clientY - area.top) / area.height, rows), at((event.clientX - area.left) / area.width, columns)]);
  };
  canvas.tabIndex = 0;
  canvas.onclick = pointed;
  if (hovered) canvas.onpointermove = pointed;
  canvas.onkeydown = event => {
    const to = event.altKey || event.ctrlKey || event.metaKey ? null : step(event.key, chosen(), size());
    if (to === null) return;
    event.preventDefault();
    choose(to);
  };
}
