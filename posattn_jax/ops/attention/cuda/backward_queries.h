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

// Adds blocks of 16 offsets of the table, from number `first`, times their encodings to the gradient of the warp's
// queries. The encodings are those from block `j` of a stage.
DEVICE void add_by_offset(const Params& p, const Memory& memory, const Slab& slab, const Own& own, const Right& right,
                          int first, uint8_t* stage, int j, Accumulator& d_queries) {
  const int last = (slab.size - 1) / 16;
  Block by_offset[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; k++)
#pragma unroll
    for (int t = 0; t < 2; t++) {
      const int n = smaller(first + k, last) * 16 + 8 * t + 2 * (lane() & 3);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Score* x = memory.table + own.scores[r] + n;
        if (lacks_factor(p))
          set(by_offset[k], 2 * t + r, number(x[0]) * memory.factor[n], number(x[1]) * memory.factor[n + 1]);
        else
          set(by_offset[k], 2 * t + r, x[0], x[1]);
      }
    }
#pragma unroll
  for (int k = 0; k < kAtOnce; k++)
    if (first + k <= last)
      add_product(d_queries, by_offset[k], right, stage + ((j + k) / kBlocks) * kPartBytes, ((j + k) % kBlocks) * 16);
}

// Adds a left factor times 16 queries of the tile to sums of features from `first` on.
DEVICE void add_queries(const Params& p, const Home& home, const Memory& memory, const Right& right,
                        Sums<kEncoded>& sum, const Block& a, int row, int first) {
  if constexpr (kInRegisters || kIsKept) {
    add_product(sum, a, right, memory.position, row, first);
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
DEVICE void add_to_encodings(const Params& p, const Home& home, const Memory& memory, const Right& right, int start,
                             int first, float after) {
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
    add_queries(p, home, memory, right, sum, transposed, rows, first);
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
  const Right right;
  const int own_warp = warp();
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
  float most[2], removed[2] = {}, statistics[2][2];  // a weight is 2^(logit - most)
  int64_t at[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    at[r] = home.features_at(p, larger(own.position[r], 0));  // all is read, so that no read waits for another
#pragma unroll
    for (int k = 0; k < 2; k++) statistics[r][k] = p.statistics[at[r] / FEATURES * 2 + k];
  }
#pragma unroll
  for (int chunk = lane() & 3; chunk < kChunks; chunk += 4) {
    float x[2][8] = {}, y[2][8] = {};
#pragma unroll
    for (int r = 0; r < 2; r++)
      read_chunk(p, p.cotangent + at[r], chunk, x[r]), read_chunk(p, p.outputs + at[r], chunk, y[r]);
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int i = 0; i < 8; i++) removed[r] += x[r][i] * y[r][i];
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const bool on = own.position[r] >= 0;  // off the grid weights are 0
    const float sum = quad_sum(removed[r]);
    removed[r] = on ? sum : 0.f;
    most[r] = on && statistics[r][1] != 0.f ? statistics[r][0] - fast_log2(statistics[r][1]) : -kHidden;
    if (on && (lane() & 3) == 0)
      p.removed[(int64_t(home.example) * p.heads + home.head) * num_positions(p) + own.position[r]] = -removed[r];
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
  Slabs slabs(p, home);
  bool is_last;
  do {
    const Slab slab = slabs.slab(p, home);
    Walk walk = slab.keys, ahead = slab.keys;
    walk.begin(), ahead.begin();
    sync_block();
    note_offsets(p, home, slab, memory, true);
    note_tables(p, home, slab, memory, HAS_FACTOR, HAS_ADDEND, true);
    if (HAS_ENCODING) clear_ends(p, slab, memory);
    sync_block();
    // Three loops: over the encodings, which fill the table, over the keys, and over the encodings again.
    const int chunks = HAS_ENCODING ? slab.chunks : 0, pairs_end = chunks + slab.keys.count() * kParts;
    const auto copy_chunk = [&](int step, int chunk) {
      if (chunk < chunks) copy_encodings(p, home, slab, memory, chunk, stage_of(memory.stages, step));
      copy_commit();
    };
    const auto copy_again = [&](int step) { copy_chunk(step, step - pairs_end); };
    const auto copy_pairs = [&](int step) {
      if (step >= pairs_end) return copy_again(step);
      const int part = (step - chunks) % kParts;
      copy_keys(p, home, start_of(p, ahead), memory, stage_of(memory.stages, step), part, (step - chunks) / kParts);
      if (part == kParts - 1) ahead.advance();
      copy_commit();
    };
    const auto copy = [&](int step) { step < chunks ? copy_chunk(step, step) : copy_pairs(step); };
    Score* own_rows = memory.table + own_warp * kWarpRows * p.pitch;
    if (!HAS_ENCODING && keeps_table)
      for (int n = lane(); n < kWarpRows * p.pitch; n += 32) write(own_rows + n, 0.f);
    float* d_bias[2] = {HAS_KEY ? p.d_content_bias : nullptr, HAS_ENCODING ? p.d_position_bias : nullptr};
    for (float*& x : d_bias) x = x == nullptr ? nullptr : x + home.bias_at(p);
    uint32_t active = 0;
    int step = -kAhead;
    for (; step < chunks; step++) {
      begin_step(p, memory.stages, step, true, copy);
      if (step < 0) continue;
      positional.load(memory.position, queries_of(p, home, p.position_bias), own.position);
      fill_table<true>(p, home, slab, memory, own, positional, right, step, stage_of(memory.stages, step));
    }
    for (; step < pairs_end; step++) {
      begin_step(p, memory.stages, step, HAS_KEY, copy_pairs);
      uint8_t *keys = stage_of(memory.stages, step), *values = keys + kPartBytes;
      const int part = (step - chunks) % kParts;
      const int32_t* labels = memory.labels + ((step - chunks) / kParts & 1) * kTile;
      if (part == 0) pairs.update(p, home, slab, memory, own, walk, labels), active = 0;
      const int kept = pair_of_tiles(p, block_y(), home.number, home.tile, start_of(p, walk)) * 4 + own_warp;
#pragma unroll kUnrolled
      for (int row = 0; row < ROWS; row += 16) {
        const int block = part * kBlocks + row / 16;
        uint32_t bits[2], shown[2];
        bits_of(pairs.reach, block, bits);
        bits_of(pairs.shown, block, shown);
        if (!any((bits[0] | bits[1]) & 0x303)) continue;
        active |= 1u << block;
        Logits logits;
        logits.compute<true>(p, memory, slab, own, pairs, queries, right, keys, block, row, bits, most);
        logits.hide(p, labels, segments, block, shown);
        float weights[2][4], d_logits[2][4];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++) d_logits[t][i] = -removed[i / 2];
#pragma unroll kUnrolledSteps
        for (int step = 0; step < kSteps; step++) {
          Block b;
          right.load_columns(b, values, row, step);
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
            float &x = d_logits[t][2 * r], &y = d_logits[t][2 * r + 1];
            float kept[2] = {x, y};
            if (HAS_FACTOR) {
              const float* tangent = memory.tangents + logits.numbers[t][r] * TANGENTS;
              add_tangents(p, d_tangents, x * logits.sums[t][2 * r], tangent);
              add_tangents(p, d_tangents, y * logits.sums[t][2 * r + 1], tangent + TANGENTS);
              x *= logits.factors[t][2 * r], y *= logits.factors[t][2 * r + 1];
              if (!lacks_factor(p)) kept[0] = x, kept[1] = y;
            }
            // Of two keys of which one is out of reach, that one's 0 gets into its own place or into one of no offset.
            Score* to = memory.table + own.scores[r] + logits.numbers[t][r];
            if (keeps_table && (bits[r] >> (8 * t) & 3)) *reinterpret_cast<ScorePair*>(to) = pair_of(kept[0], kept[1]);
          }
        if (HAS_KEY) {
          Block d_scores;
          set(d_scores, d_logits);
          add_product(d_queries, d_scores, right, keys, row);
        }
      }
      if (part < kParts - 1) continue;
      if (lane() == 0) p.active[kept] = active;
      walk.advance();
    }
    if (chunks > 0) add_sums(d_bias[0], d_bias[1]);
    for (; step < pairs_end + chunks; step++) {
      begin_step(p, memory.stages, step, true, copy_again);
      uint8_t* stage = stage_of(memory.stages, step);
      const int first = (step - pairs_end) * 2 * kBlocks;
#pragma unroll 1
      for (int j = 0; j < 2 * kBlocks && (first + j) * 16 < slab.size; j += kAtOnce)
        add_by_offset(p, memory, slab, own, right, first + j, stage, j, d_queries);
      if (p.d_encoding == nullptr) continue;
#pragma unroll 1
      for (int j = (own_warp - first) & 3; j < 2 * kBlocks && (first + j) * 16 < slab.size; j += 4)
#pragma unroll 1
        for (int feature = 0; feature < WIDTH; feature += kEncoded)
          add_to_encodings(p, home, memory, right, (first + j) * 16, feature, after);
    }
    is_last = !slabs.advance();
    if (chunks == 0)
      add_sums(d_bias[0], nullptr);
    else
      add_sums(d_bias[1], is_last ? nullptr : d_bias[0]);
    if (p.d_addend != nullptr) {
      sync_block();
      for (int n = thread(); n < slab.size; n += kThreads) {
        if (memory.index[n] < 0) continue;
        float sum = 0.f;
        for (int row = 0; row < kTile; row++) sum += number(score(memory, p, row, n));
        add(p.d_addend + home.gradient_at(p) + memory.index[n], sum);
      }
    }
  } while (!is_last);
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
