// The kernels of attention for NVIDIA GPUs from Ampere on.
//
//   logits[t, s] = factor[s - t] ((q_t + u) . k_s + (q_t + v) . E[s - t]) + addend[s - t]
//
// `factor` is the scale where there is no table. WIDTH: the features, rounded up to 16, 32, 64, 128 or 256. PLANES: 1 for
// bfloat16; 2 for float32, of which each number is the sum of two of bfloat16.
#include "device.h"

namespace posattn {
struct alignas(2) bf16 {
  uint16_t bits;
};
#if PLANES == 1
using In = bf16;
#else
using In = float;
#endif
}  // namespace posattn

#include "params.h"
#include "tiles.h"
#include "table.h"
#include "forward.h"
#include "backward_queries.h"
#include "backward_keys.h"
