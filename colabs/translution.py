# %% [markdown]
# # Translution: a value matrix for every displacement
# A convolution has a matrix for every displacement, attention has weights for every pair. Translution has both (Fan
# 2025).

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
import pathlib

import jax, jax.numpy as jnp
from IPython.display import Image, display

from posattn_jax import Content, LowRankTranslution, PositionalSelfAttention, Translution
from posattn_jax.run.train import train
from posattn_jax.benchmarks import translution
from posattn_jax.config.parts import change, part
from posattn_jax.system.command_line import load_config

# %% [markdown]
# As the values of a layer: all displacements, those within a span, or a low rank.

# %%
pixels = jnp.ones((1, 8 * 8, 16))
for values in (None, Translution(), Translution(half_span=(1, 1)), LowRankTranslution(rank=4)):
    layer = PositionalSelfAttention(num_heads=1, values=values)
    params = layer.init(jax.random.key(0), pixels, (8, 8))["params"]
    print(f"{sum(array.size for array in jax.tree.leaves(params)):>8,} parameters: {values}")

# %% [markdown]
# What that costs on your device, next to the form as printed, with a value for every pair:

# %%
size = ["--grids=2x2", "--batch=2", "--width=4", "--seconds=.1"] if SMALL else ["--grids=4x4,8x8", "--seconds=10"]
translution.run(["", *size])

# %% [markdown]
# A classifier of digits with Translution within one pixel, instead of encodings and span:

# %%
config = load_config("configs/digits.py:tiny" if SMALL else "configs/digits.py")
attention = "model.block.attention"
terms, values = {"content": part(Content)}, part(Translution, half_span=(1, 1))
change(config, {f"{attention}.terms": terms, f"{attention}.values": values, f"{attention}.span": None})
config.model.pooling = "mean"
workdir = pathlib.Path("runs/digits_translution")
train(config, workdir)
display(Image(workdir / "figures" / "learning_curves.png"))

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
