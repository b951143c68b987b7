# pyright: reportMissingImports=false
"""Trains the classifier of Alfons 2022 by its authors' own PyTorch code, for `benchmarks.cpu.turns`.

  python benchmarks/cpu/authors_torch.py --checkout=FOLDER --workdir=FOLDER [--version=v1] [--side=32] [--num_blocks=6]
      [--batch_size=20] [--sigma=.3] [--device=cuda]

--checkout is a clone of github.com/MeenaAlfons/posattn. An update is two micro-batches of made images, and Adam's step,
as in their experiments; rows of metrics.jsonl count the updates until the process is stopped. For instance

  python -m benchmarks.cpu.turns --rounds=3 --seconds=20 \
      "v1=PYTHON_WITH_TORCH benchmarks/cpu/authors_torch.py --checkout=FOLDER --side=16 --sigma=.05" \
      "ours=python -m posattn_jax.main --config=configs/cifar2d_span.py:half --config.data.dir=FOLDER \
          --config.model.block.attention.span.initial_sigma=.05 --config.train.log_steps=1"
"""

import argparse
import json
import pathlib
import sys
import types

import torch

# What their config.yaml and their sweep b_2_4_ex2_3_2D.yaml say of the model.
MODEL = {
    "input_dim": 3,
    "model_dim": 64,
    "num_classes": 10,
    "num_heads": 8,
    "dim_feedforward": 128,
    "dropout": 0.1,
    "causal": False,
    "cls_token": "last",
    "same_positional_encoding": False,
    "include_position": True,
    "positional_encoding": "implicit",
    "positional_logits_operation": "add",
    "apply_positional_mask": True,
    "positional_mask_threshold": 0.1,
    "multiply_positional_mask_with": "all_logits",
    "learn_sigma": True,
    "resolution_reduction_kernel_size": 2,
    "pe": {
        "num_layers": 3,
        "hidden_dim": 64,
        "num_positional_dims": 2,
        "activation": "Sine",
        "final_activation": "Identity",
        "normalized": True,
        "activation_params": {"w0": 10.0},
    },
}


def make_classifier(options):
    """Theirs, from the file that their experiments make it with; what it imports for logging is left out."""
    sys.path[:0] = [str(options.checkout / "cmd"), str(options.checkout)]
    logging = types.ModuleType("experiment")
    vars(logging).update(TorchModel=object, Config=dict)
    sys.modules["experiment"] = logging
    from models.positional_transformer_classifier import create_transformer_classifier

    return create_transformer_classifier(
        MODEL
        | {
            "num_layers": options.num_blocks,
            "resolution_reduction": [False] * options.num_blocks,
            "sigma": {"default": options.sigma},
            "positional_attention_version": options.version,
        }
    )


def main():
    """Trains until it is stopped."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("checkout", "workdir"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--version", default="v1", choices=("v1", "v2", "v3"))
    for name, default in (("side", 32), ("num_blocks", 6), ("batch_size", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    torch.manual_seed(0)
    model = make_classifier(options).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.randn(options.batch_size, options.side, options.side, 3, device=options.device)
    labels = torch.randint(10, (options.batch_size,), device=options.device)
    options.workdir.mkdir(parents=True, exist_ok=True)
    with (options.workdir / "metrics.jsonl").open("w", encoding="utf-8") as rows:
        step = 0
        while True:
            for _ in range(2):
                (torch.nn.functional.cross_entropy(model(images), labels) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            if options.device == "cuda":
                torch.cuda.synchronize()  # a row is an update that is done
            step += 1
            print(json.dumps({"step": step}), file=rows, flush=True)


if __name__ == "__main__":
    main()
