"""Run folders of a sweep, without the runs."""

import json

import numpy as np

SUMMARY = {
    "num_parameters": 1234,
    "grid_shape": [4, 6],
    "threshold": 0.1,
    "seconds": 90.0,
    "device": "1 x cpu",
    "versions": {"jax": "0.10.2"},
    "git_commit": "abc",
}


def config(seed, **model):
    train = {"total_steps": 0, "total_epochs": 3.0, "batch_size": 20, "accumulation_steps": 2}
    parts = {"data": {"kind": "Images", "name": "digits", "dir": "data"}, "task": {"kind": "Classification"}}
    return parts | {"seed": seed, "model": {"width": 64} | model, "train": train}


def write_run(workdir, response, seed=None, grid=(4, 6), sigma=None, finished=True, **model):
    """A run of three epochs whose best is the last."""
    seed = int(workdir.name) if seed is None else seed
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(config(seed, **model)))
    rows = []
    for epoch in (1, 2, 3):
        step = 10 * epoch
        rows.append(("validation", step, float(epoch), "accuracy", response - 0.1 * (3 - epoch)))
        rows.append(("speed", step, float(epoch), "seconds", 30.0 * epoch))
        if sigma is not None:
            rows += [("span", step, float(epoch), f"block_0/size_{i}", 2.0 * epoch + 1) for i in range(len(grid))]
    names = ("split", "step", "epoch", "name", "value")
    lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    image = np.random.default_rng(0).random((4, 6, 1)).astype(np.float32)
    arrays = {} if sigma is None else {"block_0/sigma": np.asarray(sigma, np.float32)}
    np.savez(workdir / "positions.npz", image=image, **arrays)
    if finished:
        best = {"step": 30, "epoch": 3.0, "loss": 1.0, "accuracy": response}
        summary = SUMMARY | {"grid_shape": list(grid), "best": best, "final": best}
        (workdir / "summary.json").write_text(json.dumps(summary))
