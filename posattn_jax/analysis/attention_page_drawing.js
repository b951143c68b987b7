"use strict";
// What the page draws with: colours, scales, bars and maps of numbers.
const colours = {};  // as the style sheet has them, light or dark
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["--weight", "--query", "--above", "--below"]) colours[name] = style.getPropertyValue(name).trim();
}

const weightColour = share => "rgb(" + colours["--weight"] + " / " + 0.75 * share + ")";

// The scale below what colours mean numbers in: from left to right, with 0 where it is inside.
function scaleOf(low, high, colourOf, format) {
  const scale = document.createElement("div"), bar = document.createElement("div"), ticks = document.createElement("p");
  const values = low < 0 && high > 0 ? [low, 0, high] : [low, (low + high) / 2, high];
  bar.style.background = "linear-gradient(to right, " + values.map((value, i) => colourOf(value) + " " + 50 * i + "%").join(", ") + ")";
  ticks.append(...values.map(value => {
    const tick = document.createElement("span");
    tick.textContent = format(value);
    return tick;
  }));
  scale.className = "scale";
  scale.append(bar, ticks);
  return scale;
}

function drawBars(canvas, values, low, high, mark) {
  canvas.width = Math.max(160, 4 * values.length);
  canvas.height = 120;
  const c = canvas.getContext("2d"), bar = canvas.width / values.length, top = Math.max(high, 0), bottom = Math.min(low, 0);
  const y = value => 4 + (top - value) / (top - bottom || 1) * (canvas.height - 8);
  values.forEach((value, i) => {
    c.fillStyle = "rgb(" + colours[value < 0 ? "--below" : low < 0 ? "--above" : "--weight"] + ")";
    c.fillRect(i * bar, Math.min(y(value), y(0)), Math.max(1, bar - 1), Math.abs(y(value) - y(0)) || 1);
  });
  c.fillStyle = colours["--query"];
  c.fillRect((mark + 0.5) * bar - 1, 0, 2, canvas.height);
}
function valueColour(value, low, high) {
  const name = value < 0 ? "--below" : low < 0 ? "--above" : "--weight";
  return "rgb(" + colours[name] + " / " + Math.abs(value) / (Math.max(Math.abs(low), Math.abs(high)) || 1) + ")";
}
function drawMap(canvas, values, rows, columns, low, high) {
  const cell = Math.max(2, Math.round(300 / Math.max(rows, columns)));
  canvas.width = columns * cell;
  canvas.height = rows * cell;
  const c = canvas.getContext("2d");
  values.forEach((value, i) => {
    c.fillStyle = valueColour(value, low, high);
    c.fillRect(i % columns * cell, Math.floor(i / columns) * cell, cell, cell);
  });
  c.strokeStyle = colours["--query"];
  c.lineWidth = Math.max(1, cell / 8);
  c.strokeRect((columns - 1) / 2 * cell, (rows - 1) / 2 * cell, cell, cell);
}
