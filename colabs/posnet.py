# %% [markdown]
# # PosNet: weights that know positions alone
# In an encoder and a decoder such weights translate about as well as attention, where a gate multiplies the averages;
# between the two, attention stays (Schmidt 2023). Here numbers are translated from English words to German ones, where
# units come before tens: twenty-four is vierundzwanzig. A few minutes on a CPU core.

# %%
# Installs the package where it is missing: from the clone that this notebook lies in; on Colab put the address in.
import importlib.util, os, pathlib, subprocess, sys

if importlib.util.find_spec("posattn_jax") is None:
    REPOSITORY = pathlib.Path("..").resolve().as_uri()  # or "git+https://ADDRESS"
    wanted = f"posattn_jax[train,nlp] @ {REPOSITORY}"  # the jax that is installed stays
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
SMALL = os.environ.get("POSATTN_SMALL") == "1"  # so that the tests can run it in seconds

# %%
import pathlib, sys

import jax
from IPython.display import Image, display

from posattn_jax import precomputed
from posattn_jax.run.train import train
from posattn_jax.use import translate
from posattn_jax.system.command_line import load_config
from posattn_jax.data import number_words

text = pathlib.Path("runs/numbers")
number_words.write(text, {"train": 200 if SMALL else 20_000, "val": 20, "test": 20})
print((text / "val.en").read_text().splitlines()[0], "-", (text / "val.de").read_text().splitlines()[0])

# %%
config = load_config("configs/nmt_multi30k.py:tiny" if SMALL else "configs/nmt_multi30k.py:rposnet")
config.data.update(dir=str(text), test_part="test", vocabulary_size=60 if SMALL else 120)
if not SMALL:
    from configs import common_nmt

    config.data.buckets = (12, 20, 32)
    common_nmt.set_model(config, "rposnet", 64, 128, 4, 0.1, weight_dropout_rate=0.0, num_blocks=2)
    config.train.total_epochs = 5.0
workdir = pathlib.Path("runs/posnet")
train(config, workdir)

# %%
translate.translate(workdir, None, [b"seven hundred forty-two", b"ninety-nine one hundred"], sys.stdout)

# %% [markdown]
# What a head of the encoder looks at, whatever the words:

# %%
for path in sorted((workdir / "figures").glob("energies_encoder*.png")):
    display(Image(path))

# %% [markdown]
# Energies of positions do not depend on the words, so that they can be made once, into tables. It is the same function:

# %%
translator, _ = translate.of_run(workdir)
fast, tables = precomputed(translator.task.model, translator.params, 64)
for name, params in (("as trained", translator.params), ("precomputed", tables)):
    print(f"{name}: {sum(array.size for array in jax.tree.leaves(params)):,} parameters")
