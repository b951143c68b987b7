// The backward pass over keys: gradients of keys and values, from the weights that the pass over queries left.
//
//   dV_s = sum_t A_ts dO_t      dK_s = sum_t dS_ts (q_t + u)
//
// A block sums over all heads that share its head of keys, one after the other.
#pragma once

namespace posattn {

// A walk over the tiles of queries in reach of a tile of keys, for each head of a group.
struct Queries {
  Home home;
  Walk walk;
  int first, last;  // head

  DEVICE Queries(const Params& p, const Home& of_keys) : home(of_keys) {
    first = home.head, last = first + group(p) - 1;
    begin(p);
  }
  DEVICE void begin(const Params& p) {
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      walk.first[axis] = home.first_met(p, axis, true);
      walk.last[axis] = home.last_met(p, axis, true);
    }
    walk.begin();
  }
  DEVICE bool ends_a_head() const { return walk.is_done(); }
  DEVICE bool is_done() const { return walk.is_done() && home.head == last; }
  // After the last tile of a head.
  DEVICE void next_head(const Params& p) {
    if (is_done()) return;
    home.set_head(p, home.head + 1);
    begin(p);
  }
};

KERNEL(backward_keys, kSharing) {
  const Home home(p, true);
  uint8_t* at = shared_memory();
  uint8_t* stages = at;
  at += 2 * kStageBytes;
  uint8_t* own_values = kInRegisters ? stages : at;
  at += kInRegisters ? 0 : kTileBytes;
  float* removed = reinterpret_cast<float*>(at);
  const Own own(p, home.tile);
  copy_with_bias(p, own_values, home.key_features(p, p.value), p.key_heads, nullptr, home.tile);
  sync_block();
  Rows values;
  values.load(own_values, warp() * kWarpRows);
  sync_block();
  Queries now(p, home), ahead = now;
  const auto copy = [&](int step) {
    if (!ahead.is_done()) {
      const Place tile = start_of(p, ahead.walk);
      uint8_t* stage = stages + (step & 1) * kStageBytes;
      const auto index = [&](int row) { return position(p, tile, row); };
      if (HAS_KEY) copy_tile(p, stage, ahead.home.features(p, p.query), p.heads, index);
      copy_tile(p, stage + kTileBytes, ahead.home.features(p, p.cotangent), p.heads, index);
      if (thread() < kTile) {
        const int found = position(p, tile, thread());
        const int64_t rows = (int64_t(home.example) * p.heads + ahead.home.head) * num_positions(p);
        removed[(step & 1) * kTile + thread()] = found < 0 ? 0.f : p.removed[rows + found];
      }
      ahead.walk.advance();
      if (ahead.ends_a_head()) ahead.next_head(p);
    }
    copy_commit();
  };
  Accumulator d_keys, d_values;
  clear(d_keys), clear(d_values);
  float sums[2] = {};  // of dS over queries, for the bias of the queries
  for (int step = -1; !now.is_done(); step++) {
    if (step >= 0) await_stage(p, stages + (step & 1) * kStageBytes, HAS_KEY);
    copy(step + 1);
    if (step < 0) continue;
    const Place tile = start_of(p, now.walk);
    const float* factor = HAS_FACTOR ? p.factor + now.home.table_at(p) : nullptr;
    int number = 0;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) number = number * tiles_along(p, axis) + now.walk.tile[axis];
    int64_t offset[2];  // the index of the offset from the tile's first query to each of the thread's keys
#pragma unroll
    for (int r = 0; r < 2; r++) {
      offset[r] = 0;
#pragma unroll
      for (int axis = kFirstAxis; axis < 3; axis++)
        offset[r] = offset[r] * relative(p, axis) + own.at[r].at[axis] - tile.at[axis] + p.size[axis] - 1;
    }
    const int unit = block_y() * group(p) + now.home.head - now.first;
    const int64_t kept = pair_of_tiles(p, unit, number, tile, home.tile);
    const uint32_t active = reinterpret_cast<const uint32_t*>(p.active)[kept] >> warp();
    uint8_t *queries = stages + (step & 1) * kStageBytes, *cotangents = queries + kTileBytes;
#pragma unroll 1
    for (int rows = 0; rows < kTile / 16; rows++) {
      if (!(active >> (8 * rows) & 1)) continue;
      Block weights;  // transposed
      float d_scores[2][4] = {};
#pragma unroll
      for (int k = 0; k < PLANES; k++) {
        const uint4 w = p.weights[(((kept * 4 + rows) * 4 + warp()) * PLANES + k) * 32 + lane()];
        weights.planes[k][0] = transpose(w.x), weights.planes[k][1] = transpose(w.z);
        weights.planes[k][2] = transpose(w.y), weights.planes[k][3] = transpose(w.w);
      }
      add_product(d_values, weights, cotangents, rows * 16);
      if (!HAS_KEY) continue;
#pragma unroll
      for (int step = 0; step < kSteps; step++) {
        Block b;
        load_right(b, cotangents, rows * 16, step);
        multiply(d_scores[0], d_scores[1], values[step], b);
      }
#pragma unroll
      for (int t = 0; t < 2; t++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float weight = 0.f;
#pragma unroll
            for (int k = 0; k < PLANES; k++) {
              const uint32_t word = weights.planes[k][2 * t + r];
              weight += i ? high(word) : low(word);
            }
            const int query = rows * 16 + 8 * t + 2 * (lane() & 3) + i;
            float& x = d_scores[t][2 * r + i];
            x = weight * (x - removed[(step & 1) * kTile + query]);
            if (HAS_FACTOR) {
              int64_t back = 0;
              const Place in = within(p, query);
#pragma unroll
              for (int axis = kFirstAxis; axis < 3; axis++) back = back * relative(p, axis) + in.at[axis];
              x *= own.position[r] >= 0 && weight != 0.f ? factor[offset[r] - back] : 0.f;  // a NaN is not 0
            }
            sums[r] += x;
          }
      Block d_scores_of_keys;
      set(d_scores_of_keys, d_scores);
      add_product(d_keys, d_scores_of_keys, queries, rows * 16);
    }
    now.walk.advance();
    if (!now.ends_a_head()) continue;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float sum = quad_sum(sums[r]);
      sums[r] = 0.f;
      if (HAS_KEY && p.content_bias != nullptr)
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++)
#pragma unroll
          for (int k = 0; k < 2; k++) {
            const int feature = 8 * i + 2 * (lane() & 3) + k;
            if (feature < FEATURES)
              d_keys[i][2 * r + k] += sum * posattn::number(p.content_bias[now.home.bias_at(p) + feature]);
          }
    }
    now.next_head(p);
  }
  const float after = HAS_FACTOR ? 1.f : p.scale;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if (own.position[r] < 0) continue;
    const int64_t to = home.key_features_at(p, own.position[r]);
    if (HAS_KEY) write_row(p, p.d_key + to, d_keys, r, after);
    write_row(p, p.d_value + to, d_values, r, 1.f);
  }
}

}  // namespace posattn
