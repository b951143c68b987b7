const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const isText = data.kind === "text", MEAN = -1;
const state = { example: 0, layer: 0, head: MEAN, query: 0 };

// Weights as they were quantised: of each query the largest, and all in 255ths of it.
const decoded = new Map();
function weightsOf(example, layer) {
  const key = example + "/" + layer;
  if (!decoded.has(key)) {
    const own = data.examples[example].layers[layer];
    decoded.set(key, { shares: bytes(own.shares), largest: new Float32Array(bytes(own.largest).buffer) });
  }
  return decoded.get(key);
}
function rowOf(head, query) {
  const { shares, largest } = weightsOf(state.example, state.layer), n = data.examples[state.example].size;
  const row = new Float32Array(n), heads = head === MEAN ? data.heads.map((_, i) => i) : [head];
  for (const h of heads) {
    const start = (h * n + query) * n, unit = largest[h * n + query] / 255 / heads.length;
    for (let s = 0; s < n; s++) row[s] += shares[start + s] * unit;
  }
  return row;
}

// Places: class tokens come first, then the grid in row-major order.
const width = data.grid[data.grid.length - 1];
const placeOf = token => data.grid.length === 1 ? [token - data.classTokens]
  : [Math.floor((token - data.classTokens) / width), (token - data.classTokens) % width];
function halfSpan(head) {
  const halves = data.layers[state.layer].halfSpans;
  if (!halves) return null;
  const some = head === MEAN ? halves : [halves[head]];
  return halves[0].map((_, i) => Math.max(...some.map(half => half[i])));
}
function isInside(head, query, token) {
  const half = halfSpan(head);
  if (!half || query < data.classTokens || token < data.classTokens) return false;
  const a = placeOf(query), b = placeOf(token);
  return half.every((reach, i) => Math.abs(a[i] - b[i]) <= reach);
}
function nameOf(token) {
  if (isText) return (token + 1) + " " + wordOf(data.examples[state.example].tokens[token]);
  if (token < data.classTokens) return "the class token";
  const cell = token - data.classTokens, [, columns] = data.shown;
  return "row " + (Math.floor(cell / columns) + 1) + ", column " + (cell % columns + 1);
}
const wordOf = piece => piece.replace(/^\u2581/, "") || "\u2581";
const percent = weight => (100 * weight).toFixed(weight < 0.0995 ? 2 : 1) + " %";

const pictures = new Map();
function pictureOf(example) {
  if (!pictures.has(example)) {
    const image = new Image();
    image.onload = update;
    image.src = data.examples[example].picture;
    pictures.set(example, image);
  }
  return pictures.get(example);
}
function drawImage(canvas, head, row, size, keys = []) {
  const [rows, columns] = data.shown, cell = Math.max(2, Math.round(size / Math.max(rows, columns)));
  canvas.width = columns * cell;
  canvas.height = rows * cell;
  const c = canvas.getContext("2d"), picture = pictureOf(state.example);
  c.imageSmoothingEnabled = false;
  if (picture.complete && picture.naturalWidth) c.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const most = Math.max(...row.subarray(data.classTokens)) || 1;
  for (let i = 0; i < rows * columns; i++) {
    c.fillStyle = weightColour(row[i + data.classTokens] / most);
    c.fillRect(i % columns * cell, Math.floor(i / columns) * cell, cell, cell);
  }
  if ($("span").checked) drawSpan(c, head, cell);
  const line = Math.min(6, Math.max(1, cell / 9));
  for (const key of keys) frameOf(c, key, cell, line / 2, "#ffe600");
  frameOf(c, state.query, cell, line, "#5cc8ff");
}
function frameOf(c, token, cell, line, colour) {
  const i = token - data.classTokens, columns = data.shown[1];
  if (i < 0) return;
  c.lineWidth = line;
  for (const [style, inset] of [["#000", 0.5], [colour, 1.5]]) {
    c.strokeStyle = style;
    c.strokeRect(i % columns * cell + inset * line, Math.floor(i / columns) * cell + inset * line,
      cell - 2 * inset * line, cell - 2 * inset * line);
  }
}
function drawSpan(c, head, cell) {
  const [rows, columns] = data.shown;
  const inside = i => isInside(head, state.query, i + data.classTokens);
  c.beginPath();
  for (let i = 0; i < rows * columns; i++) {
    if (!inside(i)) continue;
    const x = i % columns, y = Math.floor(i / columns), left = x * cell, top = y * cell;
    if (!x || !inside(i - 1)) { c.moveTo(left, top); c.lineTo(left, top + cell); }
    if (x === columns - 1 || !inside(i + 1)) { c.moveTo(left + cell, top); c.lineTo(left + cell, top + cell); }
    if (!y || !inside(i - columns)) { c.moveTo(left, top); c.lineTo(left + cell, top); }
    if (y === rows - 1 || !inside(i + columns)) { c.moveTo(left, top + cell); c.lineTo(left + cell, top + cell); }
  }
  for (const [style, share] of [["#000", 6], ["#fff", 14]]) {
    c.strokeStyle = style;
    c.lineWidth = Math.min(90 / share, Math.max(1, cell / share));
    c.stroke();
  }
}
function drawKernels() {
  $("kernels").replaceChildren(...data.layers[state.layer].kernels.map(kernel => {
    const figure = document.createElement("figure"), canvas = document.createElement("canvas");
    const all = bytes(kernel.values), size = all.length / data.heads.length;
    const heads = state.head === MEAN ? data.heads.map((_, i) => i) : [state.head], values = new Array(size).fill(0);
    for (const h of heads) {
      const [low, high] = kernel.ranges[h];
      for (let i = 0; i < size; i++) values[i] += (low + all[h * size + i] / 255 * (high - low)) / heads.length;
    }
    const low = Math.min(...values), high = Math.max(...values);
    const range = low.toPrecision(3) + " to " + high.toPrecision(3), isMap = data.grid.length > 1;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", kernel.name + ", " + range);
    const caption = document.createElement("figcaption"), name = document.createElement("strong");
    name.textContent = kernel.name;
    caption.append(name, ": " + kernel.is + (isMap ? "." : ". " + range + "."));
    figure.append(canvas, caption);
    if (isMap) {
      drawMap(canvas, values, 2 * data.grid[0] - 1, 2 * data.grid[1] - 1, low, high);
      canvas.after(scaleOf(low, high, value => valueColour(value, low, high), value => value.toPrecision(3)));
    } else drawBars(canvas, values, low, high, (size - 1) / 2);
    return figure;
  }));
}
function drawHeads() {
  [...$("heads").children].forEach((button, i) => {
    const head = i - 1, canvas = button.firstChild, row = rowOf(head, state.query);
    button.setAttribute("aria-pressed", head === state.head);
    button.lastChild.textContent = "up to " + percent(Math.max(...row));
    if (isText) drawBars(canvas, [...row], 0, Math.max(...row), state.query);
    else drawImage(canvas, head, row, 160);
  });
}
// As many columns as fill the last row best; where one panel would be left over, the mean, which is no head, is alone.
function arrangeHeads() {
  const box = $("heads"), panels = box.children, fit = Math.max(2, Math.floor(box.clientWidth / 131));
  let columns = 2;
  for (let c = Math.min(fit, panels.length); c >= Math.max(2, fit / 2); c--)
    if (filled(panels.length, c) > filled(panels.length, columns)) columns = c;
  const isAlone = panels.length % columns === 1;
  box.style.gridTemplateColumns = "repeat(" + columns + ", minmax(0, 11rem))";
  panels[0].classList.toggle("alone", isAlone);
  panels[0].style.width = isAlone ? "min(11rem, " + 100 / columns + "%)" : "";
}
const filled = (count, columns) => ((count - 1) % columns + 1) / columns;
function drawTokens(row) {
  const most = Math.max(...row) || 1;
  [...$("tokens").children].forEach((button, s) => {
    const isQuery = s === state.query;
    button.setAttribute("aria-selected", isQuery);
    button.tabIndex = isQuery ? 0 : -1;
    button.style.backgroundColor = weightColour(row[s] / most);
    button.classList.toggle("inside", $("span").checked && isInside(state.head, state.query, s));
    button.lastChild.textContent = percent(row[s]);
  });
}
function update() {
  readColours();
  const example = data.examples[state.example], row = rowOf(state.head, state.query);
  $("prediction").textContent = example.prediction;
  $("spanChoice").hidden = !data.layers[state.layer].halfSpans;
  const keys = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 5);
  $("query").textContent = "Query: " + nameOf(state.query) + ". It attends most to:";
  $("keys").replaceChildren(...keys.map(s => {
    const item = document.createElement("li");
    item.textContent = percent(row[s]) + " \u2013 " + nameOf(s) + (s === state.query ? " (itself)" : "");
    return item;
  }));
  if (isText) drawTokens(row);
  else drawImage($("image"), state.head, row, 640, keys.filter(s => row[s] > 0));
  const most = Math.max(...row.subarray(isText ? 0 : data.classTokens));
  $("scale").replaceChildren(scaleOf(0, most, weight => weightColour(weight / (most || 1)), percent));
  if ($("classToken")) $("classToken").setAttribute("aria-pressed", state.query < data.classTokens);
  drawHeads();
  drawKernels();
}
function choose(changes) {
  Object.assign(state, changes);
  for (const name of ["example", "layer", "head"]) $(name).value = state[name];
  if ("example" in changes) stage();
  update();
}
function stage() {
  state.query = Math.min(state.query, data.examples[state.example].size - 1);
  if (!isText) return;
  $("tokens").replaceChildren(...data.examples[state.example].tokens.map((piece, s) => {
    const button = document.createElement("button"), weight = document.createElement("small");
    button.type = "button";
    button.setAttribute("role", "option");
    button.append(wordOf(piece), weight);
    button.onclick = () => choose({ query: s });
    return button;
  }));
}
// Left, right, up and down; in a text up and down as left and right, Home and End to its ends.
function step(key) {
  const n = data.examples[state.example].size, columns = isText ? 1 : data.shown[1], first = isText ? 0 : data.classTokens;
  const cell = Math.max(state.query, first) - first, x = cell % columns;
  if (isText) {
    const to = { ArrowLeft: cell - 1, ArrowUp: cell - 1, ArrowRight: cell + 1, ArrowDown: cell + 1, Home: 0, End: n - 1 }[key];
    return to === undefined ? null : Math.min(Math.max(to, 0), n - 1);
  }
  const to = { ArrowLeft: x ? cell - 1 : cell, ArrowRight: x < columns - 1 ? cell + 1 : cell, ArrowUp: cell - columns,
    ArrowDown: cell + columns, Home: cell - x, End: cell - x + columns - 1 }[key];
  if (to === undefined) return null;
  return first + (to < 0 || to >= n - first ? cell : to);
}
function onKey(event) {
  const to = event.altKey || event.ctrlKey || event.metaKey ? null : step(event.key);
  if (to === null) return;
  event.preventDefault();
  choose({ query: to });
  if (isText) $("tokens").children[to].focus();
}
function begin() {
  const options = (select, names) => select.replaceChildren(...names.map(([value, name]) => new Option(name, value)));
  options($("example"), data.examples.map((example, i) => [i, example.title]));
  options($("layer"), data.layers.map((layer, i) => [i, layer.number]));
  options($("head"), [[MEAN, "mean of heads"], ...data.heads.map((number, i) => [i, number])]);
  for (const name of ["example", "layer", "head"]) $(name).onchange = event => choose({ [name]: Number(event.target.value) });
  $("choices").onsubmit = event => event.preventDefault();
  $("span").onchange = update;
  $("about").textContent = data.about;
  const far = data.grid.map(size => size - 1).join(" x ");
  $("middle").textContent = "In the middle is the query itself; at the edges are keys " + far + " positions away, "
    + (data.grid.length === 1 ? "those before it on the left." : "those above and left of it on that side.");
  if (isText) {
    $("view").className = "text";
    const tokens = document.createElement("div");
    tokens.id = "tokens";
    tokens.setAttribute("role", "listbox");
    tokens.setAttribute("aria-label", "Tokens: choose a query");
    tokens.onkeydown = onKey;
    $("stage").append(tokens);
    $("hint").textContent = "Click or touch a token, or move with the arrow keys, to choose the query. "
      + "Percentages are its weights; the strongest colour is its largest.";
  } else {
    const canvas = document.createElement("canvas");
    canvas.id = "image";
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", "Image: choose a query with the arrow keys");
    canvas.setAttribute("aria-describedby", "query");
    canvas.onkeydown = onKey;
    canvas.onclick = event => {
      const box = canvas.getBoundingClientRect(), [rows, columns] = data.shown;
      const at = (offset, size, number) => Math.min(number - 1, Math.max(0, Math.floor(offset / size * number)));
      const y = at(event.clientY - box.top - canvas.clientTop, canvas.clientHeight, rows);
      const x = at(event.clientX - box.left - canvas.clientLeft, canvas.clientWidth, columns);
      choose({ query: data.classTokens + y * columns + x });
    };
    $("stage").append(canvas);
    if (data.classTokens) {
      const button = document.createElement("button");
      button.id = "classToken";
      button.type = "button";
      button.textContent = "Query: the class token";
      button.onclick = () => choose({ query: 0 });
      $("stage").append(button);
    }
    $("hint").textContent = "Click or touch the image, or focus it and use the arrow keys, to choose the query (blue). "
      + "Orange shows its weight on each key; the strongest orange is its largest weight; yellow frames are the keys listed"
      + (data.layers.some(layer => layer.halfSpans)
      ? "; the white line is the box of the learned span." : ".");
  }
  $("heads").replaceChildren(...[["mean", MEAN], ...data.heads.map((number, i) => ["head " + number, i])].map(([name, head]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(document.createElement("canvas"), name, document.createElement("small"));
    button.onclick = () => choose({ head });
    return button;
  }));
  const middle = isText ? Math.min(1, data.examples[0].size - 1)
    : data.classTokens + Math.floor(data.shown[0] / 2) * data.shown[1] + Math.floor(data.shown[1] / 2);
  matchMedia("(prefers-color-scheme: dark)").onchange = update;
  onresize = arrangeHeads;
  arrangeHeads();
  choose({ example: 0, query: middle });
}
begin();
