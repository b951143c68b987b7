"use strict";
// Part two of the page: the matrices that Translution has for displacements, of a small trained model.
const trained = JSON.parse($("displacements").textContent);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const sides = trained.grid.map(size => 2 * size - 1), count = sides[0] * sides[1];
const layers = trained.layers.map(layer => ({
  cosine: Float32Array.from(new Int8Array(bytes(layer.cosine).buffer), each => each / 127),
  singular: Float32Array.from(bytes(layer.singular), each => each / 255 * layer.largest),
}));
let displacement = trained.grid.map(size => size - 1);

// Of the chosen head, by displacement: the singular values, the norm and the cosine.
function readTable() {
  const { cosine, singular } = layers[$("layer").value], head = Number($("head").value), size = trained.features;
  const values = indices(count).map(i => [...singular.subarray((head * count + i) * size, (head * count + i + 1) * size)]);
  return { values, norms: values.map(each => Math.hypot(...each)), cosines: [...cosine.subarray(head * count, (head + 1) * count)] };
}
function drawSingular(values, largest) {
  $("singular").replaceChildren(...values.map(value => {
    const row = document.createElement("li"), bar = document.createElement("span");
    bar.style.width = 100 * value / largest + "%";
    row.append(bar, shown(value));
    return row;
  }));
}
function updateTable() {
  const { values, norms, cosines } = readTable(), at = displacement[0] * sides[1] + displacement[1];
  const most = Math.max(...norms), by = displacement.map((each, i) => each - trained.grid[i] + 1);
  for (const [id, palette, shares] of [["norms", VIRIDIS, norms.map(norm => norm / most)],
    ["cosines", DIVERGING, cosines.map(cosine => (cosine + 1) / 2)]]) {
    const { c, wide, high } = drawCells($(id), ...sides, palette, shares);
    stroke(c, around(trained.grid.map(size => size - 1), [0, 0], wide, high), [6, 6]);
    stroke(c, around(displacement, [0, 0], wide, high));
  }
  drawColourBar($("normsBar"), VIRIDIS, [0, most / 2, most]);
  drawColourBar($("cosinesBar"), DIVERGING, [-1, -0.5, 0, 0.5, 1]);
  drawSingular(values[at], Math.max(...values.flat()));
  const pairs = by.reduce((product, each, i) => product * (trained.grid[i] - Math.abs(each)), 1);
  $("displacement").textContent = "Key minus query: " + number(by[0], "rows") + ", " + number(by[1], "columns")
    + ". Norm " + shown(norms[at]) + ", cosine to the centre's "
    + cosines[at].toFixed(2) + "; " + whole(pairs) + " of " + whole(trained.grid.reduce((a, b) => a * b) ** 2)
    + " pairs are so far apart.";
}
function chooseDisplacement(cell) {
  displacement = cell;
  updateTable();
}
const options = (select, total) => select.replaceChildren(...indices(total).map(i => new Option(i + 1, i)));
options($("layer"), layers.length);
options($("head"), trained.heads);
$("about").textContent = trained.about;
for (const name of ["layer", "head"]) $(name).oninput = updateTable;
for (const name of ["norms", "cosines"]) choosable($(name), () => sides, () => displacement, chooseDisplacement, true);
updateTable();
