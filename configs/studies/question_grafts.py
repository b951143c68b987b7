"""Do Translution and a learned span help a vision transformer that was trained without them? On CIFAR-10. (Ours.)

python -m posattn_jax.main --config=configs/studies/question_grafts.py --mode=sweep --workdir=runs/question_grafts \
    --workers=1 --config.data.dir=FOLDER
A transformer with absolute positions is trained for six epochs. Every other run starts from the one of its seed, in
runs/question_grafts, and trains for two more: unchanged, with a part added that does not change its function at first,
or without positions. Images have 16 x 16 pixels, and patches 2 x 2. The result is that of the test set after the last
epoch.
Hardware and time: one CPU core, 18 runs, 2.6 hours. Expected accuracies, means of three seeds: .524 before, and after
the two epochs .528 unchanged, .529 with a span, .546 with Translution, .438 without positions, .536 with Translution
instead of them.
"" or :tiny (tests).
"""

from typing import Any

from ml_collections import ConfigDict

from configs.lib import common_grafts, common_vit
from posattn_jax import Translution
from posattn_jax.analysis.plan import PAPER_SEEDS, Claim, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part

BASE = "runs/question_grafts/base/{seed}"


def get_config(variant: str = "") -> ConfigDict:
    """The vision transformer of `common_vit`, with absolute positions, two blocks and four heads."""
    if variant not in ("", "tiny"):
        raise ValueError(f'config variant "{variant}": expected none or "tiny"')
    config = change(common_vit.get_config("cifar10", variant), common_vit.TRANSFORMER)
    config.data.pool = 2
    config.model.update(patch_shape=(2, 2), num_blocks=2)
    config.model.block.attention.num_heads = 4
    config.optimizer.learning_rate = 1e-3
    if variant != "tiny":
        config.train.total_epochs = 6.0
        config.optimizer.schedule.warmup_epochs = 1.0
    return config


def sweep(variant: str = "") -> Plan:
    added = {common_vit.VALUES: part(Translution)}
    without = {"model.absolute_positions": False}
    parts: dict[str, tuple[str, dict[str, Any]]] = {
        "unchanged": ("Unchanged", {}),
        "span": ("Learned span added", common_grafts.fields("span")),
        "translution": ("Translution added", added | common_grafts.RATE),
        "bare": ("Without abs positions", without),
        "bare_translution": ("Translution instead of abs positions", without | added | common_grafts.RATE),
    }
    recipe: dict[str, Any] = {"task.pretrained": BASE, "optimizer.learning_rate": 3e-4}
    if variant != "tiny":
        recipe |= {"train.total_epochs": 2.0, "optimizer.schedule.warmup_epochs": 0.2}
    claims: tuple[Claim, ...] = (
        ("A learned span that is added is above the unchanged model", "span", "unchanged", "greater"),
        ("Translution that is added is above the unchanged model", "translution", "unchanged", "greater"),
        ("Taking absolute positions away is below the unchanged model", "bare", "unchanged", "less"),
        ("Without absolute positions, Translution is above none", "bare_translution", "bare", "greater"),
    )
    return Plan(
        "Do Translution and a learned span help a vision transformer that was trained without them?",
        (
            Treatment("base", "Before: six epochs", {}),
            *(Treatment(name, label, recipe | fields) for name, (label, fields) in parts.items()),
        ),
        tuple(Hypothesis(*claim) for claim in claims),
        seeds=PAPER_SEEDS[:3],
        epoch="last",
    )
