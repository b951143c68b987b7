# %% [markdown]
# # PosNet: weights that know positions alone
# In an encoder and a decoder such weights translate about as well as attention, where a gate multiplies the averages;
# between the two, attention stays (Schmidt 2023). Here numbers are translated from English words to German ones, where
# units come before tens: twenty-four is vierundzwanzig. A few minutes on a CPU core.

# %%
# @title Install and look at the device
# ADDRESS: where pip finds the package, git+https://HOST/OWNER/posattn_jax or a folder; empty in a clone.
ADDRESS = ""  # @param {type: "string"}
EXTRAS = "train,nlp"  # @param {type: "string"}
import importlib.util, os, pathlib, subprocess, sys

if importlib.util.find_spec("posattn_jax") is None:
    clone = pathlib.Path("..").resolve()
    if not ADDRESS and not (clone / "setup.py").exists():
        sys.exit("Fill in ADDRESS above: where pip finds posattn_jax. This notebook lies in no clone.")
    where = pathlib.Path(ADDRESS or clone)
    address = where.resolve().as_uri() if where.exists() else ADDRESS
    wanted = f"posattn_jax[{EXTRAS}] @ {address}"  # the jax that is installed stays
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
SMALL = os.environ.get("POSATTN_SMALL") == "1"  # so that the tests can run it in seconds
LOOK = "import jax; found = jax.devices(); print(found[0].platform, len(found), 'x', found[0].device_kind)"
look = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
EXPECT = {
    "cpu": "all works here; a cell that trains takes minutes",
    "gpu": "kernels of our own from Ampere on (not on a T4), after a first call of up to a minute",
    "tpu": "never tried by us: please tell us",
}
print(f"{look.strip()}: {EXPECT[look.split()[0]]}")

# %%
import pathlib, sys

import jax
from IPython.display import Image, display

from posattn_jax import precomputed
from posattn_jax.run.train import train
from posattn_jax.use import translate
from posattn_jax.system.command_line import load_config
from posattn_jax.data.text import number_words

text = pathlib.Path("runs/numbers")
number_words.write(text, {"train": 200 if SMALL else 20_000, "val": 20, "test": 20})
print((text / "val.en").read_text().splitlines()[0], "-", (text / "val.de").read_text().splitlines()[0])

# %%
config = load_config("configs/nmt.py:multi30k,tiny" if SMALL else "configs/nmt.py:multi30k,rposnet")
config.data.update(dir=str(text), test_part="test", vocabulary_size=60 if SMALL else 120)
if not SMALL:
    from configs.lib import common_nmt

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

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
