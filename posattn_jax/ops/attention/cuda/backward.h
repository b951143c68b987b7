// The backward pass over queries: gradients of queries, encodings, biases and tables. It computes the weights again.
//
//   dL_ts = A_ts (dO_t . V_s - dO_t . O_t)      dS_ts = factor dL_ts      dQ_t = sum_s dS_ts (K_s + E_{s-t})
//
// A: the weights. L: the logits. S: the sums of products that `factor` multiplies. Each offset of a query belongs to one
// key, so dS takes the place of the table's scores; or dL, if the gradient of an addend is made of it.
#pragma once

namespace posattn {

// The features of encodings whose gradients are summed at once, beside those of the queries.
constexpr int kEncoded = WIDTH <= 128 ? WIDTH : 64;

// Whether the table has dL, which is not yet multiplied by the factor of its offset. What is the same for all offsets is
// multiplied at the end.
DEVICE bool lacks_factor(const Params& p) { return HAS_FACTOR && HAS_ADDEND; }

DEVICE Score score(const Memory& memory, const Params& p, int row, int n) {
  return memory.table[row * p.pitch + n + within(p, row).at[2]];
}

// Adds 16 offsets of the table, from `start`, times their encodings to the gradient of the warp's queries.
DEVICE void add_by_offset(const Params& p, const Memory& memory, const Own& own, int start, uint8_t* encodings,
                          int row, Accumulator& d_queries) {
  Block by_offset;
#pragma unroll
  for (int t = 0; t < 2; t++) {
    const int n = start + 8 * t + 2 * (lane() & 3);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const Score* x = memory.table + own.row[r] * p.pitch + own.x[r] + n;
      if (lacks_factor(p))
        set(by_offset, 2 * t + r, number(x[0]) * memory.factor[n], number(x[1]) * memory.factor[n + 1]);
      else
        set(by_offset, 2 * t + r, x[0], x[1]);
    }
  }
  add_product(d_queries, by_offset, encodings, row);
}

// Adds a left factor times 16 queries of the tile to sums of features from `first` on.
DEVICE void add_queries(const Params& p, const Home& home, const Memory& memory, Sums<kEncoded>& sum, const Block& a,
                        int row, int first) {
  if constexpr (kInRegisters || kIsKept) {
    add_product(sum, a, memory.position, row, first);
  } else {
    const Features queries = queries_of(p, home, p.position_bias);
#pragma unroll
    for (int step = 0; step < kEncoded / 16; step++) {
      Block b;
#pragma unroll
      for (int word = 0; word < 4; word++) {
        float x[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int at = position(p, home.tile, row + 8 * (word & 1) + 2 * (lane() & 3) + i);
          x[i] = queries.read(p, at, first + step * 16 + 8 * (word >> 1) + (lane() >> 2));
        }
        set(b, word, x[0], x[1]);
      }
      multiply(sum[2 * step], sum[2 * step + 1], a, b);
    }
  }
}

// Adds to the gradient of 16 encodings, from offset `start`: features from `first` on.
DEVICE void add_to_encodings(const Params& p, const Home& home, const Memory& memory, int start, int first,
                             float after) {
  Sums<kEncoded> sum;
  clear(sum);
  const int own[2] = {start + (lane() >> 2), start + (lane() >> 2) + 8};
#pragma unroll
  for (int rows = 0; rows < kTile; rows += 16) {
    Block transposed;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int query = rows + 8 * t + 2 * (lane() & 3);
        const Score x = score(memory, p, query, own[r]), y = score(memory, p, query + 1, own[r]);
        if (lacks_factor(p))
          set(transposed, 2 * t + r, number(x) * memory.factor[own[r]], number(y) * memory.factor[own[r]]);
        else
          set(transposed, 2 * t + r, x, y);
      }
    add_queries(p, home, memory, sum, transposed, rows, first);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int index = memory.index[own[r]];
    if (index < 0) continue;
    add_row(p, p.d_encoding + ((home.outer * home.offsets(p) + index) * p.heads + home.head) * FEATURES, sum, r, after,
            first);
  }
}

// Adds a number times the tangents of an offset.
DEVICE void add_tangents(const Params& p, float (&sums)[kMostTangents], float x, const float* tangents) {
#pragma unroll
  for (int k = 0; k < TANGENTS; k += 2) {
    if (TANGENTS % 2 == 0) {  // then pairs are aligned
      const float2 pair = *reinterpret_cast<const float2*>(tangents + k);
      sums[k] += x * pair.x, sums[k + 1] += x * pair.y;
    } else {
      sums[k] += x * tangents[k];
      if (k + 1 < TANGENTS) sums[k + 1] += x * tangents[k + 1];
    }
  }
}

KERNEL(backward, 2) {
  const Home home(p, false);
  if (home.is_idle(p)) return;
  const Memory memory(p, true);
  const Own own(p, home.tile);
  const bool keeps_table = HAS_ENCODING || p.d_addend != nullptr;
  copy_queries(p, home, memory);
  const Features of_outputs = {home.features(p, p.cotangent), nullptr, p.heads};
  if (kInRegisters || kIsKept)
    copy_features<1>(p, of_outputs.from, p.heads, home.tile, {memory.cotangent}, {nullptr});
  sync_block();
  Rows queries, positional, cotangents;
  queries.load(memory.content, queries_of(p, home, p.content_bias), own.position);
  cotangents.load(memory.cotangent, of_outputs, own.position);
  int32_t segments[2];
  segments_of(p, home, own, segments);
  float most[2], removed[2];  // a weight is 2^(logit - most)
#pragma unroll
  for (int r = 0; r < 2; r++) {
    most[r] = -kHidden, removed[r] = 0.f;  // off the grid weights are 0
    if (own.position[r] >= 0) {
      const int64_t at = home.features_at(p, own.position[r]);
      const float inverse = p.statistics[at / FEATURES * 2 + 1];
      if (inverse != 0.f) most[r] = p.statistics[at / FEATURES * 2] - fast_log2(inverse);
#pragma unroll
      for (int chunk = lane() & 3; chunk < WIDTH / 8; chunk += 4) {
        float x[8] = {}, y[8] = {};
        read_chunk(p, p.cotangent + at, chunk, x), read_chunk(p, p.outputs + at, chunk, y);
#pragma unroll
        for (int i = 0; i < 8; i++) removed[r] += x[i] * y[i];
      }
    }
    removed[r] = quad_sum(removed[r]);
    if (own.position[r] >= 0 && (lane() & 3) == 0)
      p.removed[(int64_t(home.example) * p.heads + home.head) * num_positions(p) + own.position[r]] = removed[r];
  }
  const float after = HAS_FACTOR ? kLn2 : p.scale;  // factors are in units of ln 2
  Accumulator d_queries;
  clear(d_queries);
  float d_tangents[kMostTangents] = {};
  // The gradient of a bias is the sum of what its part adds to the gradients of queries. Keys and encodings take turns:
  // when a turn ends, the sum so far is added to its bias and taken from the one whose turn begins.
  const auto add_sums = [&](float* ends, float* begins) {
    if (ends == nullptr && begins == nullptr) return;
    // Over the warp's 16 rows, eight blocks of features at a time. In each step a lane and its partner share what they
    // have: each goes on with one half of it.
    constexpr int at_once = smaller(8, WIDTH / 8);
#pragma unroll
    for (int block = 0; block < WIDTH / 8; block += at_once) {
      float sums[at_once][2];
#pragma unroll
      for (int i = 0; i < at_once; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) sums[i][k] = d_queries[block + i][k] + d_queries[block + i][2 + k];
      int own = block;
      bool is_own = true;
#pragma unroll
      for (int step = 1; step <= 3; step++) {
        const int mask = 32 >> step, rest = at_once >> step;
        const bool upper = lane() & mask;
        if (rest == 0) {
#pragma unroll
          for (int k = 0; k < 2; k++) sums[0][k] += shuffle_xor(sums[0][k], mask);
          is_own = is_own && !upper;
        }
#pragma unroll
        for (int i = 0; i < rest; i++)
#pragma unroll
          for (int k = 0; k < 2; k++) {
            const float low = sums[i][k], high = sums[rest + i][k];
            sums[i][k] = (upper ? high : low) + shuffle_xor(upper ? low : high, mask);
          }
        own += upper ? rest : 0;
      }
      const float row[1][4] = {{sums[0][0], sums[0][1]}};
      if (is_own && ends != nullptr) add_row(p, ends, row, 0, after, 8 * own);
      if (is_own && begins != nullptr) add_row(p, begins, row, 0, -after, 8 * own);
    }
  };
  Pairs pairs;
  for (Slabs slabs(p, home); !slabs.is_done();) {
    const Slab slab = slabs.slab(p, home);
    Walk walk = slab.keys, ahead = slab.keys;
    walk.begin(), ahead.begin();
    sync_block();
    note_offsets(p, home, slab, memory, true);
    note_tables(p, home, slab, memory, HAS_FACTOR, HAS_ADDEND, true);
    if (HAS_ENCODING) clear_ends(p, slab, memory);
    sync_block();
    const int chunks = HAS_ENCODING ? slab.chunks : 0, parts = slab.keys.count() * kParts;
    const int steps = chunks + parts + chunks;
    const auto copy = [&](int step) {
      uint8_t* stage = stage_of(memory.stages, step);
      if (step >= chunks && step < chunks + parts) {
        const int part = (step - chunks) % kParts;
        copy_keys(p, home, start_of(p, ahead), memory, stage, part, (step - chunks) / kParts);
        if (part == kParts - 1) ahead.advance();
      } else if (step < steps) {
        copy_encodings(p, home, slab, memory, step < chunks ? step : step - chunks - parts, stage);
      }
      copy_commit();
    };
    Score* own_rows = memory.table + warp() * kWarpRows * p.pitch;
    if (!HAS_ENCODING && keeps_table)
      for (int n = lane(); n < kWarpRows * p.pitch; n += 32) write(own_rows + n, 0.f);
    float* d_bias[2] = {HAS_KEY ? p.d_content_bias : nullptr, HAS_ENCODING ? p.d_position_bias : nullptr};
    for (float*& x : d_bias) x = x == nullptr ? nullptr : x + home.bias_at(p);
    uint32_t active = 0;
    for (int step = -kAhead; step < steps; step++) {
      begin_step(p, memory.stages, step, step < chunks || step >= chunks + parts || HAS_KEY, copy);
      if (step < 0) continue;
      uint8_t* stage = stage_of(memory.stages, step);
      if (step < chunks) {
        positional.load(memory.position, queries_of(p, home, p.position_bias), own.position);
        fill_table<true>(p, home, slab, memory, own, positional, step, stage);
        continue;
      }
      if (step >= chunks + parts) {
        const int first = (step - chunks - parts) * 2 * kBlocks;
        if (step == chunks + parts) add_sums(d_bias[0], d_bias[1]);
#pragma unroll 1
        for (int j = 0; j < 2 * kBlocks && (first + j) * 16 < slab.size; j++) {
          const int start = (first + j) * 16;
          add_by_offset(p, memory, own, start, stage + (j / kBlocks) * kPartBytes, (j % kBlocks) * 16, d_queries);
          if ((first + j) % 4 != warp() || p.d_encoding == nullptr) continue;
#pragma unroll 1
          for (int feature = 0; feature < WIDTH; feature += kEncoded)
            add_to_encodings(p, home, memory, start, feature, after);
        }
        continue;
      }
      uint8_t *keys = stage, *values = stage + kPartBytes;
      const int part = (step - chunks) % kParts;
      const int32_t* labels = memory.labels + ((step - chunks) / kParts & 1) * kTile;
      if (part == 0) pairs.update(p, home, slab, own, walk, labels), active = 0;
      const int64_t kept = pair_of_tiles(p, block_y(), home.number, home.tile, start_of(p, walk)) * 4 + warp();
#pragma unroll kUnrolled
      for (int row = 0; row < ROWS; row += 16) {
        const int block = part * kBlocks + row / 16;
        uint32_t bits[2], shown[2];
        bits_of(pairs.reach, block, bits);
        bits_of(pairs.shown, block, shown);
        if (!any((bits[0] | bits[1]) & 0x303)) continue;
        active |= 1u << block;
        int n[2];
        numbers(p, slab, block, n);
        Logits logits;
        logits.compute(p, memory, pairs, queries, keys, row, n, bits, most);
        logits.hide(p, labels, segments, block, shown);
        float weights[2][4], d_logits[2][4];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++) d_logits[t][i] = -removed[i / 2];
#pragma unroll kUnrolledSteps
        for (int step = 0; step < kSteps; step++) {
          Block b;
          load_right(b, values, row, step);
          multiply(d_logits[0], d_logits[1], cotangents.get(p, step), b);
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            weights[t][i] = fast_exp2(logits.values[t][i]);
            d_logits[t][i] *= weights[t][i];
          }
        Block kept_weights;
        set(kept_weights, weights);
#pragma unroll
        for (int k = 0; k < PLANES; k++) {
          const uint32_t(&w)[4] = kept_weights.planes[k];
          p.weights[((kept * 4 + block) * PLANES + k) * 32 + lane()] = {w[0], w[1], w[2], w[3]};
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            // Without branches, for which there would be nothing to overlap with. What is out of reach adds 0.
            const uint32_t pair = bits[r] >> (8 * t) & 3;
            float &x = d_logits[t][2 * r], &y = d_logits[t][2 * r + 1];
            float kept[2] = {x, y};
            if (HAS_FACTOR) {
              const float* tangent = memory.tangents + (pair ? pairs.number[r] + n[t] : 0) * TANGENTS;
              add_tangents(p, d_tangents, x * logits.sums[t][2 * r], tangent);
              add_tangents(p, d_tangents, y * logits.sums[t][2 * r + 1], tangent + TANGENTS);
              x *= logits.factors[t][2 * r], y *= logits.factors[t][2 * r + 1];
              if (!lacks_factor(p)) kept[0] = x, kept[1] = y;
            }
            if (keeps_table) {
              Score* to = memory.table + pairs.row[r] + n[t];
              if (pair == 3) *reinterpret_cast<ScorePair*>(to) = pair_of(kept[0], kept[1]);
              if (pair == 1 || pair == 2) write(to + (pair >> 1), pair == 1 ? kept[0] : kept[1]);
            }
          }
        if (HAS_KEY) {
          Block d_scores;
          set(d_scores, d_logits);
          add_product(d_queries, d_scores, keys, row);
        }
      }
      if (part < kParts - 1) continue;
      if (lane() == 0) p.active[kept] = active;
      walk.advance();
    }
    slabs.advance();
    if (chunks == 0)
      add_sums(d_bias[0], nullptr);
    else
      add_sums(d_bias[1], slabs.is_done() ? nullptr : d_bias[0]);
    if (p.d_addend != nullptr) {
      sync_block();
      for (int n = thread(); n < slab.size; n += kThreads) {
        if (memory.index[n] < 0) continue;
        float sum = 0.f;
        for (int row = 0; row < kTile; row++) sum += number(score(memory, p, row, n));
        add(p.d_addend + home.gradient_at(p) + memory.index[n], sum);
      }
    }
  }
  for (int k = 0; k < TANGENTS; k++) {
    float sum = d_tangents[k];
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    if (lane() == 0) add(p.d_tangents + (home.outer * p.heads + home.head) * TANGENTS + k, sum);
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (own.position[r] >= 0) write_row(p, p.d_query + home.features_at(p, own.position[r]), d_queries, r, after);
}

}  // namespace posattn
