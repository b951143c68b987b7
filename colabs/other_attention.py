# %% [markdown]
# # Another attention in a model that you have
# A vision transformer and a decoder as they are commonly written in Flax. In each the attention is a field. Then it is
# this package's layer, with positions and a learned span: which parameters there are, and what a few updates come to,
# with one seed. About a minute of CPU time.

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
import math

import flax.linen as nn
import jax, jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from posattn_jax import Content, GaussianSpan, Positional, PositionalSelfAttention, RotaryContent, SirenEncoding


def train(model, loss_of, batches, learning_rate=2e-3):
    """The parameters after an update for each batch; spans learn slowly, for they are small numbers."""
    params = jax.jit(model.init)(jax.random.key(0), batches[0][0])["params"]
    kinds = jax.tree_util.tree_map_with_path(lambda path, _: "span" if path[-1].key == "sigma" else "other", params)
    rates = {"span": optax.adam(learning_rate / 10), "other": optax.adamw(learning_rate)}
    optimizer = optax.multi_transform(rates, kinds)
    state = optimizer.init(params)

    @jax.jit
    def update(params, state, batch):
        gradient = jax.grad(lambda params: loss_of(model.apply({"params": params}, batch[0]), batch))(params)
        changes, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, changes), state

    for batch in batches:
        params, state = update(params, state, batch)
    return params


def sizes(params):
    return f"{sum(array.size for array in jax.tree.leaves(params)):,} parameters"


# %% [markdown]
# ## A vision transformer
# Patches, blocks that are normalised first, learned positions, the mean of all tokens. `attention` is any module that
# is called with tokens; `on_grid` says whether it wants them on their grid, [batch, height, width, features].


# %%
class Block(nn.Module):
    attention: nn.Module
    mlp_dim: int = 64

    @nn.compact
    def __call__(self, x):
        x = x + self.attention(nn.LayerNorm()(x))
        y = nn.gelu(nn.Dense(self.mlp_dim)(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(y)


class VisionTransformer(nn.Module):
    blocks: tuple[Block, ...]
    on_grid: bool = False
    width: int = 32

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(self.width, (2, 2), strides=2, name="embedding")(images)
        if not self.on_grid:
            x = x.reshape(len(x), -1, self.width)
            x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for block in self.blocks:
            x = block(x)
        x = nn.LayerNorm(name="norm")(x).reshape(len(x), -1, self.width)
        return nn.Dense(10, name="head")(x.mean(1))


def theirs():
    return nn.MultiHeadDotProductAttention(num_heads=4)


def ours():
    terms = (Content(), Positional(SirenEncoding()))
    return PositionalSelfAttention(num_heads=4, terms=terms, span=GaussianSpan(initial_sigma=0.2, mode="log_add"))


images, labels = load_digits(return_X_y=True)
images, labels = jnp.asarray(images.reshape(-1, 8, 8, 1) / 8 - 1), jnp.asarray(labels)
rng = np.random.default_rng(0)
order = rng.permutation(len(images))
held_out = order[:360]
batches = [(images[ids], labels[ids]) for ids in (rng.choice(order[360:], 64) for _ in range(4 if SMALL else 300))]


def cross_entropy(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


vision = {
    "theirs": VisionTransformer(tuple(Block(theirs()) for _ in range(2))),
    "ours": VisionTransformer(tuple(Block(ours()) for _ in range(2)), on_grid=True),
}
trained = {name: train(model, cross_entropy, batches) for name, model in vision.items()}
for name, params in trained.items():
    predictions = jax.jit(vision[name].apply)({"params": params}, images[held_out]).argmax(-1)
    print(f"{name:6}  accuracy {(predictions == labels[held_out]).mean():.3f}  {sizes(params)}")
for i in range(2):
    print(f"sigma of block {i}: {trained['ours'][f'blocks_{i}']['attention']['span']['sigma']}")

# %% [markdown]
# With terms of content alone our layer is theirs, and takes its trained parameters: the three kernels become one.

# %%
plain = PositionalSelfAttention(num_heads=4)
given = trained["theirs"]["blocks_0"]["attention"]
projections = {
    name: jnp.stack([given[part][name] for part in ("query", "key", "value")], -3) for name in ("kernel", "bias")
}
x = jax.random.normal(jax.random.key(1), (2, 16, 32))
same = plain.apply({"params": {"projections": projections, "output": given["out"]}}, x)
print(f"differs by {jnp.abs(same - theirs().apply({'params': given}, x)).max():.1e}")

# %% [markdown]
# ## A decoder
# As Gemma's: embeddings that are scaled and tied, RMS norms, rotary positions, one head of keys and values for four of
# queries, a gated network, no biases.


# %%
def rotated(x):
    """Rotary positions: the halves of the features as pairs."""
    a, b = jnp.split(x, 2, -1)
    angle = jnp.arange(x.shape[1])[:, None, None] * 10000.0 ** (-jnp.arange(a.shape[-1]) / a.shape[-1])
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


class GroupedAttention(nn.Module):
    """What is to be replaced."""

    num_heads: int = 4
    head_dim: int = 16

    @nn.compact
    def __call__(self, x):
        linear = lambda name, heads: nn.DenseGeneral((heads, self.head_dim), use_bias=False, name=name)(x)
        query, key, value = linear("query", self.num_heads), linear("key", 1), linear("value", 1)
        mixed = jax.nn.dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        return nn.DenseGeneral(x.shape[-1], axis=(-2, -1), use_bias=False, name="output")(mixed)


class CausalSpan(nn.Module):
    """Ours: the same projections and rotary positions, and a span that is learned."""

    @nn.compact
    def __call__(self, x):
        attention = PositionalSelfAttention(
            num_heads=4,
            head_dim=16,
            num_kv_heads=1,
            terms=(RotaryContent(),),
            span=GaussianSpan(initial_sigma=0.1, mode="log_add"),
            use_bias=False,
        )
        return attention(x, is_causal=True)


class Decoder(nn.Module):
    attentions: tuple[nn.Module, ...]
    vocabulary_size: int = 10
    width: int = 48
    mlp_dim: int = 96

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(self.vocabulary_size, self.width)
        linear = lambda features: nn.Dense(features, use_bias=False)
        x = embed(tokens) * math.sqrt(self.width)
        for attention in self.attentions:
            x = x + attention(nn.RMSNorm()(x))
            y = nn.RMSNorm()(x)
            x = x + linear(self.width)(nn.gelu(linear(self.mlp_dim)(y)) * linear(self.mlp_dim)(y))
        return embed.attend(nn.RMSNorm()(x))


def sequences(number, length=128):
    """Digits, each the sum of the last and the fifth last but for one in ten, which is any."""
    x = rng.integers(0, 10, (number, length))
    for t in range(5, length):
        follows = rng.random(number) < 0.9
        x[:, t] = np.where(follows, (x[:, t - 1] + x[:, t - 5]) % 10, x[:, t])
    return jnp.asarray(x)


def next_digit(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, 5:-1], batch[0][:, 6:]).mean()


texts, unseen = [(sequences(16),) for _ in range(4 if SMALL else 300)], (sequences(64),)
decoders = {
    "theirs": Decoder(tuple(GroupedAttention() for _ in range(2))),
    "ours": Decoder(tuple(CausalSpan() for _ in range(2))),
}
decoded = {name: train(model, next_digit, texts) for name, model in decoders.items()}
for name, params in decoded.items():
    loss = next_digit(jax.jit(decoders[name].apply)({"params": params}, unseen[0]), unseen)
    print(f"{name:6}  {loss / math.log(2):.3f} bits a digit  {sizes(params)}")
for i in range(2):
    span = decoded["ours"][f"attentions_{i}"]["PositionalSelfAttention_0"]["span"]["sigma"]
    print(f"layer {i} looks {math.ceil(2.146 * abs(span[0]) * 127)} digits back")

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
