"""English to German on Multi30k, for two CPU cores (after Schmidt 2023); sweep(): what may mix tokens?

python -m posattn_jax.main --config=configs/nmt_multi30k.py:rposnet --workdir=runs/NAME --config.data.dir=MULTI30K
... --mode=evaluate, then --mode=translate --workdir=runs/NAME < input.txt > output.txt
MULTI30K has train, val and test_2016_flickr in .en and .de, plain or .gz.
"""

from ml_collections import ConfigDict

from configs import common_nmt


def get_config(variant: str = "") -> ConfigDict:
    config = common_nmt.get_config(variant)
    config.data.test_part = "test_2016_flickr"
    if "tiny" not in variant.split(","):
        config.data.update(dir="data/multi30k", vocabulary_size=6000, buckets=(12, 16, 20, 24, 32, 64))
        config.model.update(num_blocks=3, max_length=128)
        common_nmt.set_size(config, 128, 512, 4, 0.1, steps=0, warmup=1000, scale=1.0)
        config.train.update(total_epochs=10.0, batch_size=2048, accumulation_steps=1, eval_steps=0, keep_checkpoints=4)
    return config
