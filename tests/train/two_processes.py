"""One of two processes that save and restore together; see `test_checkpoint.py`."""

import logging
import pathlib
import sys

import flax.struct
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from posattn_jax.train.checkpoint import Checkpoints
from tests.drills.damages import flip_a_bit


@flax.struct.dataclass
class State:
    step: jax.Array
    params: jax.Array


def main(address: str, process: int, workdir: pathlib.Path) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    jax.distributed.initialize(address, 2, process)
    mesh = jax.make_mesh((2,), ("data",))
    shared, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))

    def make(step: int) -> State:
        params = np.arange(100, dtype=np.float32) + step
        array = jax.make_array_from_callback(params.shape, shared, lambda index: params[index])
        return State(jax.make_array_from_callback((), whole, lambda _: np.int32(step)), array)

    abstract = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=each.sharding), make(0))
    checkpoints = Checkpoints(workdir)
    for step in (1, 2, 3):
        checkpoints.save(make(step), {"told": step}, score=float(step))
    checkpoints.wait()
    if process == 0:
        flip_a_bit(max((workdir / "checkpoints" / "3").glob("state/**/d/*"), key=lambda path: path.stat().st_size))
    restored = checkpoints.restore(abstract)
    assert restored is not None
    state, progress = restored
    own = np.concatenate([np.asarray(shard.data) for shard in state.params.addressable_shards])
    assert np.array_equal(own, np.arange(50) + 50 * process + progress["told"]), own
    checkpoints.save(make(4), {"told": 4})
    checkpoints.close()
    print(f"process {process}: {int(state.step)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]))
