import json

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from posattn_jax.analysis.figures import depthwise_kernels, draw_run, fixed_kernels
from posattn_jax.analysis.span_pictures import on_grid
from tests.support.slow import slow


def write_run(workdir, grid_shape, span=True, per_head=False, full=False, kernel=()):
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
            heads = 3 if per_head else 1
            shape = (heads, num_dims, num_dims) if full else (heads, num_dims) if per_head else num_dims
            positions[f"block_{block}/sigma"] = rng.uniform(0.1, 0.3, shape)
        if kernel:
            positions[f"block_{block}/relative_bias"] = rng.normal(size=(*(2 * s - 1 for s in grid_shape), 3))
            positions[f"block_{block}/depthwise_kernel"] = rng.normal(size=(*kernel, 6))
    best = {"step": 3, "epoch": 3, "loss": 1 / 3, "accuracy": 1 / 3}
    shares = {"block_0": 0.5, "block_1": 0.3} if span else {}
    summary = {"best": best, "grid_shape": list(grid_shape), "threshold": 0.1 if span else None}
    summary |= {"initial_sigma": 0.5 if span else None, "initial_pair_share": shares, "pair_share": shares}
    summary |= {"score_share": shares}
    workdir.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    workdir.joinpath("summary.json").write_text(json.dumps(summary))
    workdir.joinpath("config.json").write_text(
        json.dumps({"model": {"term": {"kind": "RelativeBias", "kernel_shape": list(kernel)}}})
    )
    np.savez(workdir / "positions.npz", **positions)


@pytest.mark.parametrize(
    "grid_shape, fields",
    [
        ((9,), {}),
        ((9,), {"span": False, "kernel": (5,)}),
        slow((4, 6), {"full": True, "per_head": True}),
        slow((3, 4, 5), {"kernel": (3, 3, 3)}),
        pytest.param((4, 6), {"per_head": True}, marks=pytest.mark.slow),
        pytest.param((3, 4, 5), {"full": True}, marks=pytest.mark.slow),
        pytest.param((1, 4), {}, marks=pytest.mark.slow),
        pytest.param((4, 4), {"span": False}, marks=pytest.mark.slow),
        pytest.param((4, 6), {"kernel": (5, 3)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_draws_what_the_run_has(tmp_path, grid_shape, fields):
    write_run(tmp_path, grid_shape, **fields)
    names = [path.stem for path in draw_run(tmp_path)]
    spans = ["span_over_epochs", "span_on_grid"] if fields.get("span", True) else []
    kernels = ["fixed_kernels"] if "kernel" in fields else []
    depthwise = ["depthwise_kernels"] if "kernel" in fields and len(grid_shape) == 1 else []
    assert names == ["learning_curves", *spans, "positional_encodings", *kernels, *depthwise]
    for name in names:
        pixels = matplotlib.image.imread(tmp_path / "figures" / f"{name}.png")
        assert pixels[..., :3].std() > 0.01, f"{name} is blank"


@pytest.mark.parametrize("grid_shape", [(5, 7), (3, 5, 7)], ids=str)
def test_a_leaning_gaussian_and_its_box(grid_shape):
    """The picture shows exp(-1/2 x^T (L L^T)^-1 x) and a box of the half-span sqrt(Sigma_ii) gives."""
    p = len(grid_shape)
    factor = np.array([[0.2, 9, 9], [0.1, 0.2, 9], [0.05, 0.2, -0.1]])[3 - p :, 3 - p :]
    summary = {"grid_shape": list(grid_shape), "threshold": 0.1, "initial_sigma": 0.2, "initial_pair_share": {}}
    panel = on_grid({"block_0/sigma": factor[None]}, summary).axes[0]
    lower = np.tril(factor) * [*(1 for _ in grid_shape[1:]), -1]
    covariance = lower @ lower.T
    image = panel.images[0].get_array()
    x = np.array([0, -2 / 4, 3 / 6])[3 - p :]
    assert image[2, 9] == pytest.approx(np.exp(-0.5 * x @ np.linalg.inv(covariance) @ x))
    half = np.ceil(np.sqrt(-2 * np.log(0.1) * np.diag(covariance)[-2:]) * [4, 6])
    box = panel.patches[0]
    np.testing.assert_array_equal([box.get_height(), box.get_width()], 2 * np.minimum(half, [4, 6]) + 1)
    at_first = panel.patches[1]
    assert (at_first.get_height(), at_first.get_width()) == (2 * 2 + 1, 2 * 3 + 1)  # 2.146 * .2 * 4 and * 6
    plt.close("all")


def test_each_head_has_its_box():
    """Heads that see as far have one; what the spans saved stands above them."""
    sigma = np.array([[0.1, 0.1], [0.3, 0.1], [0.1, 0.1]])
    shares = {"initial_pair_share": {"block_0": 0.66}, "pair_share": {"block_0": 0.4}, "score_share": {"block_0": 0.5}}
    summary = {"grid_shape": [5, 7], "threshold": 0.1, "initial_sigma": None, **shares}
    figure = on_grid({"block_0/sigma": sigma}, summary)
    *boxes, image = [(box.get_height(), box.get_width()) for box in figure.axes[0].patches]
    assert sorted(boxes) == [(2 * 1 + 1, 2 * 2 + 1), (2 * 3 + 1, 2 * 2 + 1)] and image == (5, 7)
    assert figure.get_suptitle().strip() == "pairs inside the spans: 40.0 %, at first 66.0 %; computed: 50.0 %"
    plt.close("all")


def test_kernels_are_drawn_by_offset():
    """What the next token has is right of the middle; offsets beyond the kernel are left out."""
    bias = np.zeros((17, 2))
    bias[8 + 1, 0], bias[8 - 2, 1], bias[8 + 5] = 1.0, -1.0, 9.0
    (panel,) = fixed_kernels({"block_0/relative_bias": bias}, [5]).axes[:1]
    np.testing.assert_array_equal(panel.images[0].get_array(), [[0, 0, 0, 1, 0], [-1, 0, 0, 0, 0]])
    assert panel.images[0].get_extent()[:2] == [-2.5, 2.5]
    plt.close("all")


def test_kernels_wider_than_the_grid():
    (panel,) = fixed_kernels({"block_0/relative_bias": np.ones((3, 2))}, [9]).axes[:1]
    assert panel.images[0].get_array().shape == (2, 3)
    plt.close("all")


def test_channels_are_sorted_from_the_previous_to_the_next_token():
    kernel = np.zeros((5, 3))
    kernel[3], kernel[1] = [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]
    (panel,) = depthwise_kernels({"block_0/depthwise_kernel": kernel}).axes[:1]
    np.testing.assert_array_equal(panel.images[0].get_array()[:, [1, 3]], [[1, -1], [0, 0], [-1, 1]])
    plt.close("all")
