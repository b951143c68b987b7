"""English to German on Multi30k, for two CPU cores (after Schmidt 2023); sweep(): what may mix tokens?

python -m posattn_jax.main --config=configs/nmt_multi30k.py:rposnet --workdir=runs/NAME --config.data.dir=MULTI30K
... --mode=evaluate, then --mode=translate --workdir=runs/NAME < input.txt > output.txt
python -m posattn_jax.main --config=configs/nmt_multi30k.py --mode=sweep --workdir=runs/multi30k --workers=2 \
    --config.data.dir=MULTI30K
MULTI30K has train, val and test_2016_flickr in .en and .de, plain or .gz. Hardware and time: one CPU core, half an
hour to an hour a run (lightconv 2.4 hours). Expected BLEU: 37.2 to 38.5, by mixer (docs/posnet.md). Variants as
configs/wmt14_en_de.py, without sizes. The sweep of a variant placements, features or gates is the paper's Table 4, 5 or
6: 8, 5 or 10 models, of which 2 to 6 have three seeds. With the word long each run has 40 epochs instead of 10, at
whose end BLEU still rose, and each model of the sweep five seeds. Neither has been run.
"""

from ml_collections import ConfigDict

from configs.lib import common_nmt
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment

LONG = "long"


def get_config(variant: str = "") -> ConfigDict:
    words = variant.split(",")
    is_long = LONG in words
    config = common_nmt.get_config(",".join(word for word in words if word != LONG))
    config.data.update(test_part="test_2016_flickr", normalization="nfkc")
    if "tiny" not in words:
        config.data.update(dir="data/multi30k", vocabulary_size=6000, buckets=(12, 16, 20, 24, 32, 64))
        # As in the runs of docs/results/multi30k: no dropout of weights, and batch sizes include padding.
        mixers = next((word for word in words if word in common_nmt.MIXERS), "transformer")
        common_nmt.set_model(config, mixers, 128, 512, 4, 0.1, weight_dropout_rate=0.0, num_blocks=3)
        common_nmt.set_schedule(config, steps=0, warmup=1000)
        config.data.batch_unit = "places"
        config.train.update(batch_size=2048, accumulation_steps=1)
        config.train.update(total_epochs=40.0 if is_long else 10.0, eval_steps=0, keep_checkpoints=4)
    return config


# The treatments of each table that have three seeds; the others have one.
SEVERAL = {
    "placements": ("transformer", "rposnet", "rposnet_c", "rposnet_edc"),
    "features": ("lightconv", "rposnet"),
    "gates": ("transformer", "transformer_gated", "aposnet", "aposnet_ungated", "rposnet", "rposnet_ungated"),
}


def sweep(variant: str = "") -> Plan:
    """Compares the paper's mixers by test BLEU: three seeds for the two that it finds equal, one for the others.

    The variants "placements", "features" and "gates" are its Tables 4, 5 and 6.
    """
    sizes = (2, 0.1, 16, 72) if "tiny" in variant.split(",") else (4, 0.0, 16, 128)
    table, is_long = common_nmt.asked(variant), LONG in variant.split(",")
    if table or is_long:
        return common_nmt.plan(
            variant,
            f"Multi30k: {common_nmt.QUESTIONS[table]}",
            lambda name: common_nmt.mixer_fields(name, *sizes),
            PAPER_SEEDS if is_long else PAPER_SEEDS[:3],
            None if is_long else SEVERAL[table],
        )
    several = ("transformer", "rposnet")
    names = ("transformer", "rposnet", "shaw", "aposnet", "lightconv", "glinear", "linear", "gaussian", "fourier")
    names += ("rposnet_ungated", "rposnet_c")
    treatments = tuple(
        Treatment(
            name,
            common_nmt.LABELS[name],
            common_nmt.mixer_fields(name, *sizes),
            num_seeds=None if name in several else 1,
        )
        for name in names
    )
    return Plan(
        "Multi30k: can weights of positions alone, gated, translate as well as attention?",
        treatments,
        (Hypothesis("rPosNet and the Transformer differ", "rposnet", "transformer"),),
        seeds=PAPER_SEEDS[:3],
        evaluate={"task.decoding.beam_size": 12},
        part="test",
        baselines=("transformer", "shaw"),
        response="bleu",
        source="Schmidt 2023",
    )
