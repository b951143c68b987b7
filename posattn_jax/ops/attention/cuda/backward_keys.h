// The backward pass over keys: gradients of keys and values, from the weights that the pass over queries left.
//
//   dV_s = sum_t A_ts dO_t      dK_s = sum_t dS_ts (q_t + u)
//
// A block sums over all heads that share its head of keys, one after the other. If sums for all features do not fit in
// registers, it begins again for each share of them.
#pragma once

namespace posattn {

// The features whose gradients are summed at once, of keys and of values.
constexpr int kShare = WIDTH <= 128 ? WIDTH : 128;

// A walk over the tiles of queries in reach of a tile of keys, for each head of a group.
struct Queries {
  Home home;
  Walk walk;
  int first, last;  // head

  DEVICE Queries(const Params& p, const Home& of_keys) : home(of_keys) {
    first = home.head, last = first + p.group - 1;
    begin(p);
  }
  // With the head, or the next one whose span has queries that are asked for.
  DEVICE void begin(const Params& p) {
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int axis = kFirstAxis; axis < 3; axis++) {
        walk.first[axis] = home.first_met(p, axis, true);
        walk.last[axis] = home.last_met(p, axis, true);
      }
      home.limit(p, walk);
      walk.begin();
      if (walk.count() > 0) return;
      walk.tile[kFirstAxis] = walk.last[kFirstAxis] + 1;
      if (home.head == last) return;
      home.set_head(p, home.head + 1);
    }
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

// Whether 16 queries of a tile, from `query` on, may meet 16 keys of the block's tile, from `key` on: whether their boxes
// are within the span of each other.
DEVICE bool may_meet(const Params& p, const Home& home, const Place& tile, int query, int key) {
  const Place first = within(p, query), last = within(p, query + 15);
  const Place first_key = within(p, key), last_key = within(p, key + 15);
  bool on = true;
#pragma unroll
  for (int axis = kFirstAxis; axis < 3; axis++) {
    const int apart = home.tile.at[axis] - tile.at[axis];
    on = on && apart + first_key.at[axis] - last.at[axis] <= home.half[axis] &&
         first.at[axis] - apart - last_key.at[axis] <= home.half[axis];
  }
  return on;
}

// Copies the factors of the offsets from a tile of queries to one of keys; those of offsets that the table lacks are 0.
DEVICE void copy_factors(const Params& p, const Home& home, const Place& queries, const Place& keys, float* to) {
  const float* factor = p.factor + home.table_at(p);
#pragma unroll 1
  for (int n = thread(); n < box_size(p); n += kThreads) {
    int rest = n, index = 0;
    bool on = true;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      const int step = rest / box_stride(p, axis), most = p.encoded[axis];
      rest -= step * box_stride(p, axis);
      const int offset = keys.at[axis] - queries.at[axis] + step + 1 - tile_size(p, axis);
      on = on && offset <= most && offset >= -most;
      index = index * relative(p, axis) + offset + most;
    }
    copy_number_async(to + n, factor + index, on);
  }
}

KERNEL(backward_keys, kSharing) {
  const Home home(p, true);
  uint8_t* at = shared_memory();
  uint8_t* stages = at;
  at += STAGES * kStageBytes;
  uint8_t* own_values = kIsKept ? at : stages;
  at += kIsKept ? kTileBytes : 0;
  float* removed = reinterpret_cast<float*>(at);
  at += STAGES * ROWS * 4;
  float* factors = reinterpret_cast<float*>(at);
  at += HAS_FACTOR ? STAGES * box_size(p) * 4 : 0;
  uint4* weights_of_stages = reinterpret_cast<uint4*>(at);  // each thread's own
  const Own own(p, home.tile);
  const Right right;
  const int own_warp = warp();
  int own_box[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    own_box[r] = in_box(p, own.row[r]) + in_box(p, kTile - 1) - in_box(p, 2 * (lane() & 3));
  const auto weights_of = [=](int step, int block, int plane) {
    return weights_of_stages + (((step & kAhead) * kBlocks + block) * PLANES + plane) * kThreads + thread();
  };
  const Features of_values = {home.key_features(p, p.value), nullptr, p.key_heads};
  if (kInRegisters || kIsKept)
    copy_features<1>(p, of_values.from, p.key_heads, home.tile, {own_values}, {nullptr});
  sync_block();
  Rows values;
  values.load(own_values, of_values, own.position);
#pragma unroll 1
  for (int feature = 0; feature < WIDTH; feature += kShare) {
    sync_block();
    Queries now(p, home), ahead = now;
    uint32_t copied = 0;  // which weights of the tile of the newest step were written
    const auto copy = [&](int step) {
      if (!ahead.is_done()) {
        const Place tile = start_of(p, ahead.walk);
        int number = 0;
#pragma unroll
        for (int axis = kFirstAxis; axis < 3; axis++) number = number * tiles_along(p, axis) + ahead.walk.tile[axis];
        const int unit = block_y() * p.group + ahead.home.head - ahead.first;
        const int kept = pair_of_tiles(p, unit, number, tile, home.tile);
        copied = reinterpret_cast<const uint32_t*>(p.active)[kept] >> own_warp;
        const int part = step % kParts;
        uint8_t* stage = stage_of(stages, step);
        const auto from = [&](int own, int same) { return row_of(p, tile, own, part * ROWS + same); };
        if (HAS_KEY) copy_part(p, stage, ahead.home.features(p, p.query), p.heads, from);
        copy_part(p, stage + kPartBytes, ahead.home.features(p, p.cotangent), p.heads, from);
        if (thread() < ROWS) {
          const Row found = from(thread(), 0);
          const int64_t rows = (int64_t(home.example) * p.heads + ahead.home.head) * num_positions(p);
          copy_number_async(removed + (step & kAhead) * ROWS + thread(), p.removed + rows + found.index, found.on);
        }
        if (HAS_FACTOR) copy_factors(p, ahead.home, tile, home.tile, factors + (step & kAhead) * box_size(p));
#pragma unroll
        for (int i = 0; i < kBlocks; i++) {
          const int block = part * kBlocks + i;
          if (!may_meet(p, ahead.home, tile, block * 16, own_warp * kWarpRows)) continue;
#pragma unroll
          for (int k = 0; k < PLANES; k++)
            copy_async(weights_of(step, i, k),
                       p.weights + (((kept * 4 + block) * 4 + own_warp) * PLANES + k) * 32 + lane(), true);
        }
        if (part == kParts - 1) ahead.walk.advance();
        if (ahead.ends_a_head()) ahead.next_head(p);
      }
      copy_commit();
    };
    Sums<kShare> d_keys, d_values;
    clear(d_keys), clear(d_values);
    float sums[2] = {};  // of dS over queries, for the bias of the queries
    for (int step = -kAhead; !now.is_done(); step++) {
      uint32_t active = copied;
      begin_step(p, stages, step, HAS_KEY, copy);
      if (step < 0) continue;
      if (!kAhead) active = copied;
      uint8_t *queries = stage_of(stages, step), *cotangents = queries + kPartBytes;
      const int part = step % kParts;
#pragma unroll 1
      for (int row = 0; row < ROWS; row += 16) {
        const int block = part * kBlocks + row / 16;
        if (!(active >> (8 * block) & 1)) continue;
        const float* of_pairs = factors + (step & kAhead) * box_size(p) - in_box(p, part * ROWS + row);
        Block weights;  // transposed
        float d_scores[2][4];  // begins with what is removed
#pragma unroll
        for (int k = 0; k < PLANES; k++) {
          const uint4 w = *weights_of(step, row / 16, k);
          weights.planes[k][0] = transpose(w.x), weights.planes[k][1] = transpose(w.z);
          weights.planes[k][2] = transpose(w.y), weights.planes[k][3] = transpose(w.w);
        }
        add_product(d_values, weights, right, cotangents, row, feature);
        if (!HAS_KEY) continue;
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            d_scores[t][i] = removed[(step & kAhead) * ROWS + row + 8 * t + 2 * (lane() & 3) + (i & 1)];
#pragma unroll kUnrolledSteps
        for (int step = 0; step < kSteps; step++) {
          Block b;
          right.load_columns(b, cotangents, row, step);
          multiply(d_scores[0], d_scores[1], values.get(p, step), b);
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
              const auto part = [&](int plane) {
                const uint32_t word = weights.planes[plane][2 * t + r];
                return i ? high(word) : low(word);
              };
              float& x = d_scores[t][2 * r + i];
              x *= PLANES == 1 ? part(0) : part(0) + part(PLANES - 1);
              if (HAS_FACTOR) x *= of_pairs[own_box[r] - in_box(p, 8 * t + i)];
              sums[r] += x;
            }
        Block d_scores_of_keys;
        set(d_scores_of_keys, d_scores);
        add_product(d_keys, d_scores_of_keys, right, queries, row, feature);
      }
      if (part == kParts - 1) now.walk.advance();
      if (!now.ends_a_head()) continue;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float sum = quad_sum(sums[r]);
        sums[r] = 0.f;
        if (HAS_KEY && p.content_bias != nullptr)
#pragma unroll
          for (int i = 0; i < kShare / 8; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
              const int at = feature + 8 * i + 2 * (lane() & 3) + k;
              if (at < FEATURES)
                d_keys[i][2 * r + k] += sum * posattn::number(p.content_bias[now.home.bias_at(p) + at]);
            }
      }
      now.next_head(p);
    }
    const float after = HAS_FACTOR ? 1.f : p.scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (own.position[r] < 0) continue;
      const int64_t to = home.key_features_at(p, own.position[r]);
      if (HAS_KEY) write_row(p, p.d_key + to, d_keys, r, after, feature);
      write_row(p, p.d_value + to, d_values, r, 1.f, feature);
    }
  }
}

}  // namespace posattn
