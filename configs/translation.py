"""Your own pairs of sentences: any two languages, a file for each, whose lines are translations of each other.

python -m posattn_jax.main --config=configs/translation.py --workdir=runs/NAME --config.data.dir=FOLDER \\
    --config.data.source=en --config.data.target=de
... --mode=evaluate, then --mode=translate --workdir=runs/NAME < input.txt > output.txt
FOLDER has train.en and train.de, plain or .gz. If it also has val (or dev, valid, validation) or test in both, they are
used; without the first, every 20th pair of train is. Hardware and time: one CPU core, about half an hour for 29,000
pairs (Multi30k's, docs/posnet.md), or a GPU for millions. Expected BLEU: that of your text. Variants: a mixer of
configs/nmt.py, such as :rposnet; :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import nmt


def get_config(variant: str = "") -> ConfigDict:
    config = nmt.get_config(f"multi30k,{variant}")
    config.data.update(validation_part="", test_part="", normalization="none")
    if "tiny" not in variant.split(","):
        config.data.update(dir="data/mine", vocabulary_size=8000)
    return config
