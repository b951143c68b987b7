// The forward pass: an online softmax over the tiles of keys within a tile's span.
#pragma once

namespace posattn {

// The reference of a query follows its largest logit only when that is larger by this much.
constexpr float kSlack = 8;

// The logits, in units of ln 2 and less a query's reference, of 16 queries and 16 keys of a tile; `sums` are the sums of
// products.
struct Logits {
  int numbers[2][2];  // of the offsets to each two keys
  float sums[2][4], values[2][4], factors[2][4];

  // row: of the part of keys. bits: the keys in reach, from each thread's first one. What lies in the place of offsets out
  // of reach is read and ignored; with only_pairs the first offset is read there, so that `sums` and `factors` are numbers.
  template <bool only_pairs>
  DEVICE void compute(const Params& p, const Memory& memory, const Slab& slab, const Own& own, const Pairs& pairs,
                      const Rows& queries, const Right& right, uint8_t* keys, int block, int row,
                      const uint32_t (&bits)[2], const float (&reference)[2]) {
    float added[2][4];  // after the factor
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int more = slab.number(within(p, block * 16 + 8 * t));
        const bool is_first = only_pairs && !(bits[r] >> (8 * t) & 3);
        const int at = numbers[t][r] = is_first ? 0 : pairs.number[r] + more;
        const Score* score = only_pairs ? memory.table + own.scores[r] + at : pairs.score[r] + more;
        const float* factor = only_pairs ? memory.factor + at : pairs.factor[r] + more;
        ScorePair found = {};
        if (HAS_ENCODING) found = *reinterpret_cast<const ScorePair*>(score);
        const float position[2] = {first(found), second(found)};
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const int i = 2 * r + k;
          const bool has_addend = HAS_ADDEND && (HAS_FACTOR || !HAS_ENCODING);
          sums[t][i] = HAS_FACTOR ? position[k] : 0.f;
          factors[t][i] = HAS_FACTOR ? factor[k] : p.scale * kLog2E;
          const float addend = has_addend ? memory.addend[at + k] : position[k];
          added[t][i] = has_addend || !HAS_FACTOR ? addend - reference[r] : -reference[r];
        }
      }
    if (HAS_KEY)
#pragma unroll kUnrolledSteps
      for (int step = 0; step < kSteps; step++) {
        Block b;
        right.load_columns(b, keys, row, step);
        multiply(sums[0], sums[1], queries.get(p, step), b);
      }
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float value = sums[t][i] * factors[t][i] + added[t][i];
        values[t][i] = bits[i / 2] >> (8 * t + (i & 1)) & 1 ? value : kHidden;
      }
  }

  // Hides pairs by key and by segment.
  DEVICE void hide(const Params& p, const int32_t* labels, const int32_t (&own)[2], int block,
                   const uint32_t (&bits)[2]) {
    if (!HAS_KEY_MASK && !HAS_SEGMENTS) return;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = i / 2;
        bool on = bits[r] >> (8 * t + (i & 1)) & 1;
        if (HAS_SEGMENTS) on = on && labels[block * 16 + 8 * t + 2 * (lane() & 3) + (i & 1)] == own[r];
        if (!on) values[t][i] = kHidden;
      }
  }
};

// The bits of a block of 16 keys.
DEVICE void bits_of(const uint64_t (&keys)[2], int block, uint32_t (&found)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++)
    found[r] = uint32_t(keys[r] >> (block & 2 ? 32 : 0)) >> (block & 1 ? 16 : 0);
}

DEVICE void segments_of(const Params& p, const Home& home, const Own& own, int32_t (&found)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++)
    found[r] = HAS_SEGMENTS && own.position[r] >= 0 ? p.segments[home.keys_at(p) + own.position[r]] : 0;
}

// The queries of a head, plus a bias.
DEVICE Features queries_of(const Params& p, const Home& home, const In* bias) {
  return {home.features(p, p.query), bias == nullptr ? nullptr : bias + home.bias_at(p), p.heads};
}

// Puts the tile's queries, plus each bias, where they are kept.
DEVICE void copy_queries(const Params& p, const Home& home, const Memory& memory) {
  if (!kInRegisters && !kIsKept) return;
  const Features content = queries_of(p, home, p.content_bias), position = queries_of(p, home, p.position_bias);
  if (HAS_KEY && HAS_ENCODING)
    copy_features<2>(p, content.from, p.heads, home.tile, {memory.content, memory.position},
                     {content.bias, position.bias});
  else if (HAS_KEY)
    copy_features<1>(p, content.from, p.heads, home.tile, {memory.content}, {content.bias});
  else if (HAS_ENCODING)
    copy_features<1>(p, content.from, p.heads, home.tile, {memory.position}, {position.bias});
}

KERNEL(forward, kSharing) {
  const Home home(p, false);
  if (home.is_idle(p)) return;
  const Memory memory(p, false);
  const Own own(p, home.tile);
  const Right right;
  copy_queries(p, home, memory);
  sync_block();
  Rows queries, positional;
  queries.load(memory.content, queries_of(p, home, p.content_bias), own.position);
  positional.load(memory.position, queries_of(p, home, p.position_bias), own.position);
  int32_t segments[2];
  segments_of(p, home, own, segments);
  Accumulator outputs;
  clear(outputs);
  // The reference, and how much larger a logit must be to move it: by anything as long as no key was seen.
  float most[2] = {}, limit[2] = {kLowest, kLowest}, total[2] = {};
  Pairs pairs;
  Slabs slabs(p, home);
  do {
    const Slab slab = slabs.slab(p, home);
    Walk walk = slab.keys, ahead = slab.keys;
    walk.begin(), ahead.begin();
    sync_block();  // the stages and the notes are free
    note_offsets(p, home, slab, memory, false);
    if (HAS_ADDEND) note_tables(p, home, slab, memory, false, true, false);
    sync_block();
    const int chunks = HAS_ENCODING ? slab.chunks : 0, steps = chunks + slab.keys.count() * kParts;
    const auto copy_pairs = [&](int step) {
      if (step < steps) {
        const int part = (step - chunks) % kParts;
        copy_keys(p, home, start_of(p, ahead), memory, stage_of(memory.stages, step), part, (step - chunks) / kParts);
        if (part == kParts - 1) ahead.advance();
      }
      copy_commit();
    };
    const auto copy = [&](int step) {
      if (step >= chunks) return copy_pairs(step);
      copy_encodings(p, home, slab, memory, step, stage_of(memory.stages, step));
      copy_commit();
    };
    int step = -kAhead;
    for (; step < chunks; step++) {
      begin_step(p, memory.stages, step, true, copy);
      if (step >= 0)
        fill_table<false>(p, home, slab, memory, own, positional, right, step, stage_of(memory.stages, step));
    }
    if (HAS_FACTOR) note_tables(p, home, slab, memory, true, false, false);
    for (; step < steps; step++) {
      begin_step(p, memory.stages, step, HAS_KEY, copy_pairs);
      uint8_t* keys = stage_of(memory.stages, step);
      const int part = (step - chunks) % kParts;
      const int32_t* labels = memory.labels + ((step - chunks) / kParts & 1) * kTile;
      if (part == 0) {
        pairs.update(p, home, slab, memory, own, walk, labels);
        walk.advance();
      }
#pragma unroll kUnrolled
      for (int row = 0; row < ROWS; row += 16) {
        const int block = part * kBlocks + row / 16;
        uint32_t bits[2];
        bits_of(pairs.shown, block, bits);
        if (!any((bits[0] | bits[1]) & 0x303)) continue;
        Logits logits;
        logits.compute<false>(p, memory, slab, own, pairs, queries, right, keys, block, row, bits, most);
        logits.hide(p, labels, segments, block, bits);
        auto& x = logits.values;
        const float found[2] = {larger(larger(x[0][0], x[0][1]), larger(x[1][0], x[1][1])),
                                larger(larger(x[0][2], x[0][3]), larger(x[1][2], x[1][3]))};
        if (any(found[0] > limit[0] || found[1] > limit[1])) {
#pragma unroll
          for (int r = 0; r < 2; r++) {
            // Each query by its own logits: its outputs are the same bits whatever other queries see.
            const float largest = quad_largest(found[r]);
            if (largest > limit[r]) {
              const float decay = limit[r] == kLowest ? 0.f : fast_exp2(-largest);
              most[r] += largest, limit[r] = kSlack;
              total[r] *= decay;
#pragma unroll
              for (int t = 0; t < 2; t++) x[t][2 * r] -= largest, x[t][2 * r + 1] -= largest;
#pragma unroll
              for (int i = 0; i < WIDTH / 8; i++) outputs[i][2 * r] *= decay, outputs[i][2 * r + 1] *= decay;
            }
          }
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++) x[t][i] = fast_exp2(x[t][i]);
        total[0] += (x[0][0] + x[0][1]) + (x[1][0] + x[1][1]);
        total[1] += (x[0][2] + x[0][3]) + (x[1][2] + x[1][3]);
        Block weights;
        set(weights, x);
        add_product(outputs, weights, right, keys + kPartBytes, row);
      }
    }
  } while (slabs.advance());
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = quad_sum(total[r]), inverse = sum == 0.f ? 0.f : 1.f / sum;
    if (own.position[r] < 0) continue;
    const int64_t at = home.features_at(p, own.position[r]);
    write_row(p, p.outputs + at, outputs, r, inverse);
    if ((lane() & 3) == 0) {
      p.statistics[at / FEATURES * 2] = most[r];
      p.statistics[at / FEATURES * 2 + 1] = inverse;
    }
  }
}

}  // namespace posattn
