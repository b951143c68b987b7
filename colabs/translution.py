# %% [markdown]
# # Translution: a value matrix for every displacement
# A convolution has a matrix for every displacement, attention has weights for every pair. Translution has both (Fan
# 2025).

# %%
# Installs the package where it is missing: from the clone that this notebook lies in; on Colab put the address in.
import importlib.util, os, pathlib, subprocess, sys

if importlib.util.find_spec("posattn_jax") is None:
    REPOSITORY = pathlib.Path("..").resolve().as_uri()  # or "git+https://ADDRESS"
    wanted = f"posattn_jax[train,nlp] @ {REPOSITORY}"  # the jax that is installed stays
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
SMALL = os.environ.get("POSATTN_SMALL") == "1"  # so that the tests can run it in seconds

# %%
import pathlib

import jax, jax.numpy as jnp
from IPython.display import Image, display

from posattn_jax import Content, LowRankTranslution, PositionalSelfAttention, Translution
from posattn_jax.run.train import train
from posattn_jax.benchmarks import translution
from posattn_jax.build.parts import change, part
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
# What that costs on your device, beside the form as printed, with a value for every pair:

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
