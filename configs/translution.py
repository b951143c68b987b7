"""Translution (Fan 2025) on images and points, read from the mean; sweep(): is it better than the Transformer?

python -m posattn_jax.main --config=configs/translution.py:mnist,quick --workdir=runs/NAME --config.data.dir=FOLDER
python -m posattn_jax.main --config=configs/translution.py:quick --mode=sweep --workdir=runs/NAME \
    --config.data.dir=FOLDER
FOLDER has the official files. The tokens' mean is classified, not a class token, and Translution has no absolute
positions, which the paper does not say; the Transformer that a sweep compares it with has them (docs/differences.md).
A variant is one of the names below and, after it, nothing (30 epochs), quick (10 epochs) or tiny (tests); without a
name it is MNIST, and its sweep is of depth 1 on MNIST, CIFAR-10 and Moving MNIST (4 epochs), of which only the last has
digits that move (Figures 4 and 5). Hardware and time: quick on 2 CPU cores, 90 minutes (2.8 hours of runs). Expected
test accuracy after the last epoch, means of 5, 5 and 3 seeds: MNIST .956 (Transformer .939), CIFAR-10 .480 (.444),
Moving MNIST .442 (.294). Times and accuracies of the names are of quick too. The first four have depth 1, and sweeps of
depths 1 to 6; the last two have no sweep:
- mnist: one CPU core, 3 minutes. Expected: .956 +- .002 (n = 5). The sweep of depths 1 to 4, one seed: 30 minutes of
  one core; 5 and 6 were not run.
- cifar10: one CPU core, 3 minutes. Expected: .480 +- .005 (n = 5).
- cifar100: not run; an estimated 3 minutes of one CPU core. Expected: not known.
- moving_mnist: an image is one still digit of MNIST at a random place of a canvas of 64 x 64 pixels. Not run; an
  estimated hour of one CPU core. Expected: not known; .442 +- .035 in three seeds after 4 epochs (25 minutes each).
- points: general Translution on clouds of points: the ink of MNIST's digits, up to 128 pixels each (equation 6). f is
  linear in the features, and its matrices depend on the displacement by a SIREN. quick has 2 epochs; it was not run as
  a whole. Expected: not known.
- imagenet: ViT-S with low-rank Translution, 16 x 16 patches of 4 x 4, without quick; imagenet,full: a matrix for every
  displacement, 1.7 billion parameters. FOLDER has ImageNet's three zips of 64x64 images, which
  `python launch/prepare.py imagenet64 FOLDER` verifies; or --config.data.name=tfds/imagenet_resized/64x64
  --config.data.validation=split, as tfds has prepared it. Not trained (2 updates of 4 made images run on 2 CPU cores);
  20 GB of host memory for the images. Expected: not known.
"""

from ml_collections import ConfigDict

from configs.lib import common, common_vit
from configs.lib.common_vit import VALUES
from posattn_jax import LowRankTranslution, Translution
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.images.image_sets import PointClouds
from posattn_jax.system.errors import InputError

LABELS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "moving_mnist": "Moving MNIST"}
NAMES = ("", *LABELS, "points", "imagenet")


def get_config(variant: str = "") -> ConfigDict:
    name, word = common.first_word(variant, NAMES)
    known = ("full" if name == "imagenet" else "quick", "tiny")
    if word not in ("", *known):
        names = ", ".join(filter(None, NAMES))
        raise ValueError(
            f'config variant "{variant}": expected one of {names}, or none; and {" or ".join(known)}, or none'
        )
    match name:
        case "imagenet":
            return _imagenet(word)
        case "points":
            return _points(word)
        case "moving_mnist":
            return change(common_vit.get_config("mnist", word), common_vit.MOVING)
        case _:
            return common_vit.get_config(name or "mnist", word)


def _points(word: str) -> ConfigDict:
    config = common_vit.get_config("mnist", word)
    config.data = part(PointClouds, name="mnist", validation="test")
    config.model.patch_shape = (1,)
    change(config, {VALUES: common_vit.general(hidden_features=32)})
    if word == "quick":
        config.train.total_epochs = 2.0
        config.optimizer.schedule.warmup_epochs = 0.5
    return config


def _imagenet(word: str) -> ConfigDict:
    config = common_vit.get_config("cifar10", "tiny" if word == "tiny" else "")
    config.data.name = "imagenet64"
    config.model.update(patch_shape=(4, 4), num_blocks=12, width=384, dtype="bfloat16", remat=True, scan_layers=True)
    config.model.block.mlp_dim = 1536
    config.model.block.attention.update(num_heads=6, use_output=True)
    change(config, {VALUES: part(LowRankTranslution, down_dim=64, rank=8)})
    config.train.update(batch_size=1024, total_epochs=300.0)
    config.optimizer.update(learning_rate=1e-3, clip_norm=1.0)
    config.optimizer.schedule.warmup_epochs = 10.0
    if word == "full":
        change(config, {VALUES: part(Translution)})
    if word == "tiny":
        config.model.update(num_blocks=2, width=8)
        config.model.block.mlp_dim = 16
        config.model.block.attention.num_heads = 2
        change(config, {f"{VALUES}.down_dim": 4, f"{VALUES}.rank": 2})
        config.train.update(total_epochs=0.0, total_steps=2, batch_size=8)
    return config


def sweep(variant: str = "") -> Plan:
    """By depth on the named data set; without a name at depth 1 on three."""
    name, word = common.first_word(variant, NAMES)
    if not name:
        return _at_depth_1(word)
    if name not in LABELS:
        raise InputError(f'sweep of "{variant}": expected no name, or one of {", ".join(LABELS)}')
    return _by_depth(LABELS[name])


def _at_depth_1(word: str) -> Plan:
    """Both models on three data sets."""
    treatments, hypotheses = [], []
    for data, label, seeds in (("mnist", "MNIST", 5), ("cifar10", "CIFAR-10", 5), ("moving_mnist", "Moving MNIST", 3)):
        fields = dict(common_vit.MOVING)
        if data != "moving_mnist":
            fields = {"data.name": data, "model.patch_shape": (common_vit.PATCH[data],) * 2}
        elif word == "quick":
            fields |= {"train.total_epochs": 4.0, "optimizer.schedule.warmup_epochs": 1.0}
        treatments += [
            Treatment(f"{data}_transformer", f"{label}: Transformer", fields | common_vit.TRANSFORMER, num_seeds=seeds),
            Treatment(f"{data}_translution", f"{label}: Translution", fields, num_seeds=seeds),
        ]
        claim = f"{label}: Translution gives a higher accuracy than the Transformer"
        hypotheses.append(Hypothesis(claim, f"{data}_translution", f"{data}_transformer", "greater"))
    claim = "The difference between the two is larger on Moving MNIST than on MNIST"
    moving, fixed = (hypotheses[i] for i in (2, 0))
    than = (fixed.treatment, fixed.control)
    hypotheses.append(Hypothesis(claim, moving.treatment, moving.control, "greater", than=than))
    return Plan(
        "Is Translution above the Transformer at a depth of 1, and more so where digits move?",
        tuple(treatments),
        tuple(hypotheses),
        epoch="last",
        source="Fan 2025",
    )


def _by_depth(label: str) -> Plan:
    """Figures 4 and 5 of the paper: both models at depths of 1 to 6."""
    treatments, hypotheses = [], []
    for depth in range(1, 7):
        layers = {"model.num_blocks": depth}
        treatments += [
            Treatment(f"transformer_{depth}", f"Transformer, depth {depth}", common_vit.TRANSFORMER | layers),
            Treatment(f"translution_{depth}", f"Translution, depth {depth}", layers),
        ]
        claim = f"At a depth of {depth} Translution gives a higher accuracy than the Transformer"
        hypotheses.append(Hypothesis(claim, f"translution_{depth}", f"transformer_{depth}", "greater"))
    return Plan(
        f"{label}: is Translution above the Transformer, and at which depth?",
        tuple(treatments),
        tuple(hypotheses),
        epoch="last",
        axis="model.num_blocks",
        source="Fan 2025, Figures 4 and 5",
    )
