"""Parts for the `values` slot of attention: the average of values plus a convolution or relative vectors."""

import functools
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Causal, Features, Float, Query, Value
from posattn_jax.nn.attending import Attention
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.parts import Encoding, Part
from posattn_jax.nn.sharding import named
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.depthwise import depthwise_convolution
from posattn_jax.ops.initial import uniform
from posattn_jax.ops.kernels import applied_offsets, check_kernel
from posattn_jax.ops.precision import plus
from posattn_jax.ops.scores import product_sum


class DepthwiseConvolution(nn.Module):
    """A convolution of each feature of a grid by itself, with a bias. Masked tokens count as 0, and class tokens get 0.

    In a causal layer it is causal in the same order: `ops.depthwise` leaves out the offsets that lie after a position.
    The parameters stay those of the whole kernel, so that a kernel fits either kind of layer.

    Attributes:
      kernel_shape: K, odd sizes.
      kernel_init: the initialiser of the kernels [*K 1 c] and of the biases [c]; None: U(+-1 / sqrt(prod(K))).
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DepthwiseConvolution, PlusDepthwise, PositionalSelfAttention
      >>> convolution = DepthwiseConvolution((3, 3), kernel_init=jax.nn.initializers.ones)
      >>> layer = PositionalSelfAttention(num_heads=2, values=PlusDepthwise(convolution))
      >>> inputs = jnp.ones((1, 3 * 4, 8))
      >>> variables = layer.init(jax.random.key(0), inputs, (3, 4))
      >>> outputs, intermediates = layer.apply(variables, inputs, (3, 4), return_intermediates=True)
      >>> intermediates["depthwise_kernel"].shape
      (3, 3, 8)
    """

    kernel_shape: tuple[int, ...]
    kernel_init: Initializer | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: Features, tokens: Tokens) -> Features:
        shape, cls, width = tokens.grid_shape, tokens.num_class_tokens, inputs.shape[-1]
        tokens.check_whole(self)
        if tokens.segment_ids is not None:
            raise ValueError("DepthwiseConvolution mixes neighbours: it cannot keep segment_ids apart")
        kernel_shape = check_kernel(self.kernel_shape, shape)
        if tokens.key_mask is not None:
            inputs = jnp.where(tokens.key_mask[..., None], inputs, 0)
        init = self.kernel_init or uniform(1 / math.sqrt(math.prod(kernel_shape)))
        convolve = nn.Conv(
            width,
            kernel_shape,
            feature_group_count=width,
            conv_general_dilated=functools.partial(_depthwise, is_causal=tokens.is_causal),
            kernel_init=named(init, "width"),
            bias_init=init,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="convolution",
        )
        batch = inputs.shape[0]
        with jax.numpy_dtype_promotion("standard"):  # Flax promotes its operands
            convolved = convolve(inputs[:, cls:].reshape(batch, *shape, width))
        convolved = convolved.reshape(batch, math.prod(shape), width)
        return jnp.pad(convolved, [(0, 0), (cls, 0), (0, 0)])


def _depthwise(inputs: Array, kernel: Float[Array, "*k 1 c"], *_: Any, is_causal: Causal, **__: Any) -> Array:
    """The function that `nn.Conv` calls. Its other arguments are ignored: `depthwise_convolution` implies them."""
    return depthwise_convolution(inputs, jnp.squeeze(kernel, -2), is_causal)


class PlusDepthwise(Composite):
    """outputs_t = sum_s alpha_ts v_s + (v * kernel)_t: a depthwise convolution after the softmax (Chang 2021, eq. 7).

    In a causal layer the convolution is causal too.

    Attributes:
      convolution: the convolution of the values of all heads, `DepthwiseConvolution(kernel_shape)`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DepthwiseConvolution, PlusDepthwise, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, values=PlusDepthwise(DepthwiseConvolution((3,))))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> outputs.shape
      (1, 5, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ("value",)

    convolution: DepthwiseConvolution

    def __call__(self, attention: Attention, value: Value, tokens: Tokens) -> Query:
        """The outputs [b t h d]. The kernel [*K c] becomes an intermediate, with 0 at offsets that are not applied."""
        convolved = self.convolution(lax.collapse(value, 2), tokens).reshape(value.shape)
        kernel = nn.unbox(self.convolution.variables)["params"]["convolution"]["kernel"]
        applied = applied_offsets(kernel.shape[:-2], tokens.is_causal)
        attention.intermediates["depthwise_kernel"] = jnp.where(applied[..., None], jnp.squeeze(kernel, -2), 0)
        return plus(attention.average(value), convolved)


class PlusRelative(Composite):
    """outputs_t = sum_s alpha_ts (v_s + A_{s-t}): values plus a vector for their offset (Shaw 2018, equation 3).

    Pairs with a class token have no offset, and no A.

    Attributes:
      encoding: a module that returns A [*R, h, d], such as `KernelEncoding((17,))`, which clips as the paper does.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import KernelEncoding, PlusRelative, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, values=PlusRelative(KernelEncoding((3, 3))))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> variables["params"]["values"]["encoding"]["table"].shape  # shared by the heads
      (3, 3, 1, 4)
    """

    needs: ClassVar[tuple[Part, ...]] = ("value",)

    encoding: Encoding

    def __call__(self, attention: Attention, value: Value, tokens: Tokens) -> Query:
        """The outputs [b t h d]; ValueError for points, which have no offsets."""
        tokens.check_whole(self)
        cls, weights = tokens.num_class_tokens, attention.weights()
        encoding = self.encoding(tokens).astype(weights.dtype)
        by_pair = grid.toeplitz(encoding, tokens.grid_shape)
        relative = product_sum("bhts,tshd->bthd", weights[:, :, cls:, cls:], by_pair)
        relative = jnp.pad(relative, [(0, 0), (cls, 0), (0, 0), (0, 0)])
        return plus(attention.average(value), relative).astype(value.dtype)
