import json

import matplotlib.image
import numpy as np
import pytest

from posattn_jax.analysis.figures import draw_run


def write_run(workdir, grid_shape, span=True, per_head=False):
    rng = np.random.default_rng(0)
    num_dims, rows, positions = len(grid_shape), [], {}
    for epoch in range(1, 4):
        for split in ("train", "validation"):
            for name in ("loss", "accuracy"):
                rows.append({"step": epoch, "epoch": float(epoch), "split": split, "name": name, "value": 1 / epoch})
        for block in range(2 if span else 0):
            for i in range(num_dims * (3 if per_head else 1)):
                name = f"block_{block}/size_{i}"
                rows.append({"step": epoch, "epoch": float(epoch), "split": "span", "name": name, "value": 3.0})
    for block in range(2):
        positions[f"block_{block}/relative_encoding"] = rng.normal(size=(*(2 * s - 1 for s in grid_shape), 3, 2))
        if span:
            positions[f"block_{block}/sigma"] = rng.uniform(0.1, 0.3, (3, num_dims) if per_head else num_dims)
    best = {"step": 3, "epoch": 3, "loss": 1 / 3, "accuracy": 1 / 3}
    summary = {"best": best, "grid_shape": list(grid_shape), "threshold": 0.1 if span else None}
    workdir.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    workdir.joinpath("summary.json").write_text(json.dumps(summary))
    np.savez(workdir / "positions.npz", **positions)


@pytest.mark.parametrize(
    "grid_shape, fields",
    [((9,), {}), ((4, 6), {"per_head": True}), ((3, 4, 5), {}), ((1, 4), {}), ((4, 4), {"span": False})],
    ids=str,
)
def test_draws_what_the_run_has(tmp_path, grid_shape, fields):
    write_run(tmp_path, grid_shape, **fields)
    names = [path.stem for path in draw_run(tmp_path)]
    spans = ["span_over_epochs", "span_on_grid"] if fields.get("span", True) else []
    assert names == ["learning_curves", *spans, "positional_encodings"]
    for name in names:
        pixels = matplotlib.image.imread(tmp_path / "figures" / f"{name}.png")
        assert pixels[..., :3].std() > 0.01, f"{name} is blank"
