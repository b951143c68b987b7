// The positional scores of a tile of queries, one for each offset between a query and a key.
//
// A slab is a box of tiles of keys. Its offsets are numbered row by row; numbers along the last axis start at an even
// offset and are even in count. The table has a row for each query. The score of offset number n is at n + x of the row,
// where x is the query's last coordinate in its tile: so two neighbouring keys are one aligned load, for every query.
#pragma once

namespace posattn {

// The blocks of 16 offsets that are worked on at once: the products of one fill the time that another waits.
constexpr int kAtOnce = 2;

#if PLANES == 1
using Score = bf16;
struct alignas(4) ScorePair {
  uint32_t words;
};
DEVICE ScorePair pair_of(float x, float y) { return {pack(x, y)}; }
DEVICE float first(ScorePair x) { return low(x.words); }
DEVICE float second(ScorePair x) { return high(x.words); }
#else
using Score = float;
struct alignas(8) ScorePair {
  float x, y;
};
DEVICE ScorePair pair_of(float x, float y) { return {x, y}; }
DEVICE float first(ScorePair x) { return x.x; }
DEVICE float second(ScorePair x) { return x.y; }
#endif

// Shared memory: the stages of features, the queries plus each bias, cotangents, and for each offset of a slab its index
// among all, factor, addend and tangents; the table.
struct Memory {
  uint8_t *stages, *content, *position, *cotangent;
  int32_t *index, *labels;
  uint32_t* places;
  float *factor, *addend, *tangents;
  Score* table;

  // `backward`: for the pass over queries.
  DEVICE Memory(const Params& p, bool backward) {
    uint8_t* at = shared_memory();
    stages = at, at += STAGES * kStageBytes;
    // What is kept in registers goes through a stage, before the stages are used.
    const auto kept = [&](int stage_tile, bool stays) {
      uint8_t* found = stays ? at : stages + stage_tile * kTileBytes;
      at += stays ? kTileBytes : 0;
      return found;
    };
    position = kept(0, HAS_ENCODING && (kIsKept || (backward && kInRegisters)));
    content = kept(1, kIsKept);
    cotangent = kept(0, backward && kIsKept);
    labels = reinterpret_cast<int32_t*>(at), at += HAS_KEY_MASK || HAS_SEGMENTS ? 4 * kTile * 4 : 0;
    const auto noted = [&](int arrays) {
      uint8_t* found = at + 4;  // one entry more at both ends is read, and ignored, as a neighbour
      at += arrays * noted_size(p) * 4;
      return found;
    };
    index = reinterpret_cast<int32_t*>(noted(1));
    // The forward pass needs no index when it needs factors: so a third block of threads has room.
    factor = reinterpret_cast<float*>(HAS_FACTOR && backward ? noted(1) : reinterpret_cast<uint8_t*>(index));
    addend = reinterpret_cast<float*>(noted(HAS_ADDEND));
    places = reinterpret_cast<uint32_t*>(noted(backward));
    tangents = reinterpret_cast<float*>(at) + TANGENTS;  // those of an offset lie together
    at += (backward ? TANGENTS : 0) * noted_size(p) * 4;
    table = reinterpret_cast<Score*>(at);
  }
  static DEVICE int noted_size(const Params& p) { return p.capacity + 2; }
};

struct Slab {
  Walk keys;                            // the tiles of keys
  int low[3] = {}, stride[2], size;     // the least offset, what a step along the first two axes adds to a number
  int chunks;                           // of offsets: as many as a stage has rows

  // The number of the offset from the first query of a tile to the first key of another.
  DEVICE int number(const Home& home, const Place& keys) const {
    int n = keys.at[2] - home.tile.at[2] - low[2];
#pragma unroll
    for (int axis = kFirstAxis; axis < 2; axis++)
      n += (keys.at[axis] - home.tile.at[axis] - low[axis]) * stride[axis];
    return n;
  }
  DEVICE int number(const Place& in) const {
    int n = in.at[2];
#pragma unroll
    for (int axis = kFirstAxis; axis < 2; axis++) n += in.at[axis] * stride[axis];
    return n;
  }
};

// The slabs that hold the keys in reach of a tile of queries, each with at most `capacity` offsets.
struct Slabs {
  Walk all;                              // the tiles of keys in reach
  int extent[3] = {1, 1, 1}, at[3] = {};

  DEVICE Slabs(const Params& p, const Home& home) {
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      at[axis] = all.first[axis] = home.first_met(p, axis, false);
      all.last[axis] = home.last_met(p, axis, false);
      extent[axis] = all.last[axis] - all.first[axis] + 1;
    }
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++)
      while (extent[axis] > 1 && most(p, home) > p.capacity) extent[axis] = (extent[axis] + 1) / 2;
  }
  DEVICE int most(const Params& p, const Home& home) const {
    int product = 1;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      const int a = tile_size(p, axis), wide = smaller(2 * home.half[axis] + 1, extent[axis] * a + a - 1);
      product *= axis == 2 ? (wide + 2) / 2 * 2 : wide;
    }
    return product;
  }
  // Whether there is another one.
  DEVICE bool advance() {
    if (!SLABS) return false;
#pragma unroll
    for (int axis = 2; axis >= kFirstAxis; axis--) {
      at[axis] += extent[axis];
      if (at[axis] <= all.last[axis] || axis == kFirstAxis) break;
      at[axis] = all.first[axis];
    }
    return at[kFirstAxis] <= all.last[kFirstAxis];
  }
  DEVICE Slab slab(const Params& p, const Home& home) const {
    Slab s;
    int count[3] = {1, 1, 1};
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      const int a = tile_size(p, axis), last = smaller(at[axis] + extent[axis] - 1, all.last[axis]);
      s.keys.first[axis] = at[axis], s.keys.last[axis] = last;
      s.low[axis] = larger(-home.half[axis], at[axis] * a - (home.tile.at[axis] + a - 1));
      const int high = smaller(home.half[axis], smaller((last + 1) * a, p.size[axis]) - 1 - home.tile.at[axis]);
      if (axis == 2) s.low[axis] &= ~1;
      count[axis] = high - s.low[axis] + 1;
    }
    count[2] = (count[2] + 1) / 2 * 2;
    s.stride[1] = count[2], s.stride[0] = count[1] * count[2];
    s.size = count[0] * s.stride[0];
    s.chunks = (s.size + 2 * ROWS - 1) / (2 * ROWS);
    return s;
  }
};

// The number of offsets of a slab in whole blocks of 16.
DEVICE int padded(const Slab& slab) { return (slab.size + 15) / 16 * 16; }

// Notes a number of each offset, in whole blocks of 16, and 0 beside the first and the last. They are `apart`.
DEVICE void note(const Slab& slab, float* to, int n, float x, int apart = 1) {
  to[n * apart] = x;
  if (n == 0) to[-apart] = 0.f;
  if (n == padded(slab) - 1) to[(n + 1) * apart] = 0.f;
}

// The place of an offset in a slab: its steps along each axis in one word, each below a bit that is 0. So all are compared
// by one subtraction. program.py keeps them in their limits.
struct Places {
  uint32_t word = 0;

  static DEVICE int first_bit(const Params& p, int axis) { return IS_3D ? 10 * axis : 12 * (axis - 1); }
  static DEVICE int limit(const Params& p, int axis) {
    return axis == 2 ? 2047 : axis == 1 ? (IS_3D ? 511 : 2047) : IS_3D ? 511 : 0;
  }
  // A step beyond the limit becomes the limit, which no offset has.
  DEVICE void set(const Params& p, int axis, int step) {
    if (axis > 0 || IS_3D) word |= larger(0, smaller(step, limit(p, axis))) << first_bit(p, axis);
  }
  DEVICE bool is_between(const Params& p, Places low, Places high) const {
    const uint32_t bits = IS_3D ? 1u << 9 | 1u << 19 | 1u << 31 : 1u << 11 | 1u << 31;
    return (((word | bits) - low.word) & ((high.word | bits) - word) & bits) == bits;
  }
};

// Notes the index of each offset of a slab among all, -1 for offsets that no pair has, and its place in the slab.
DEVICE void note_offsets(const Params& p, const Home& home, const Slab& slab, const Memory& memory, bool backward) {
#pragma unroll 1
  for (int n = thread(); n < padded(slab); n += kThreads) {
    int step[3] = {0, 0, n};
    if (DIMS == 3) step[0] = step[2] / slab.stride[0], step[2] -= step[0] * slab.stride[0];
    if (DIMS >= 2) step[1] = step[2] / slab.stride[1], step[2] -= step[1] * slab.stride[1];
    bool on = n < slab.size, before = false, level = true;  // in row-major order
    int64_t index = 0;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      const int o = slab.low[axis] + step[axis];
      on = on && o <= home.half[axis] && o >= -home.half[axis] && o <= p.encoded[axis] && o >= -p.encoded[axis];
      if (CAUSAL == 2 && p.causal_axes[axis]) on = on && o <= 0;
      before = before || (level && o < 0), level = level && o == 0;
      index = index * relative(p, axis) + o + p.encoded[axis];
    }
    if (CAUSAL == 1) on = on && (before || level);
    memory.index[n] = on ? int(index) : -1;
    if (backward) {
      Places place;
#pragma unroll
      for (int axis = kFirstAxis; axis < 3; axis++) place.set(p, axis, on ? step[axis] : kMost);
      memory.places[n] = place.word;
    }
  }
}

// Notes numbers of the offsets whose indices the thread has noted. A factor may take the place of its index.
DEVICE void note_tables(const Params& p, const Home& home, const Slab& slab, const Memory& memory, bool factors,
                        bool addends, bool tangents) {
  constexpr int at_once = 4;
  const int64_t table = home.table_at(p);
#pragma unroll 1
  for (int first = thread(); first < padded(slab); first += at_once * kThreads) {
    float factor[at_once], addend[at_once], tangent[at_once][kMostTangents];  // all are read before one is written
#pragma unroll
    for (int j = 0; j < at_once; j++) {
      const int n = first + j * kThreads, index = n < padded(slab) ? memory.index[n] : -1;
      const int64_t at = table + index;
      factor[j] = factors && index >= 0 ? p.factor[at] * kLog2E : 0.f;
      addend[j] = addends && index >= 0 ? p.addend[at] * kLog2E : 0.f;
#pragma unroll
      for (int k = 0; k < TANGENTS; k++)
        tangent[j][k] = tangents && index >= 0 ? p.tangents[at * TANGENTS + k] : 0.f;
    }
#pragma unroll
    for (int j = 0; j < at_once; j++) {
      const int n = first + j * kThreads;
      if (n >= padded(slab)) continue;
      if (factors) note(slab, memory.factor, n, factor[j]);
      if (addends) note(slab, memory.addend, n, addend[j]);
#pragma unroll
      for (int k = 0; k < TANGENTS; k++)
        if (tangents) note(slab, memory.tangents + k, n, tangent[j][k], TANGENTS);
    }
  }
}

// Copies a chunk of a slab's encodings to a stage.
DEVICE void copy_encodings(const Params& p, const Home& home, const Slab& slab, const Memory& memory, int chunk,
                           uint8_t* stage) {
  const In* encodings = p.encoding + (home.outer * home.offsets(p) * p.heads + home.head) * FEATURES;
#pragma unroll 1
  for (int half = 0; half < 2; half++)
    copy_part(p, stage + half * kPartBytes, encodings, p.heads, [&](int own, int same) {
      const int n = (chunk * 2 + half) * ROWS + own + same, index = n < slab.size ? memory.index[n] : -1;
      return Row{larger(index, 0), index >= 0};
    });
}

// What a thread knows of its two queries, 8 apart in its warp's 16.
struct Own {
  int row[2], position[2];
  int scores[2];  // where those of offset number 0 are in the table
  Place in[2], at[2];

  DEVICE Own(const Params& p, const Place& tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      row[r] = warp() * kWarpRows + (lane() >> 2) + 8 * r;
      in[r] = within(p, row[r]);
      position[r] = posattn::position(p, tile, row[r]);
      scores[r] = row[r] * p.pitch + in[r].at[2];
#pragma unroll
      for (int axis = 0; axis < 3; axis++) at[r].at[axis] = tile.at[axis] + in[r].at[axis];
    }
  }
};

// Sets the entries at both ends of the rows that belong to no offset, and are read, and ignored, as neighbours.
DEVICE void clear_ends(const Params& p, const Slab& slab, const Memory& memory) {
  for (int row = thread() >> 1; row < kTile; row += kThreads / 2) {
    const int x = within(p, row).at[2];
    Score* entries = memory.table + row * p.pitch;
    if (thread() & 1)
      write(entries + padded(slab) + x, 0.f);
    else
      for (int i = 0; i < x; i++) write(entries + i, 0.f);
  }
}

// Computes the scores of a chunk of offsets for the warp's queries, and stores them. With `only_pairs` those of offsets that
// lead a query to no key of the slab are 0.
template <bool only_pairs>
DEVICE void fill_table(const Params& p, const Home& home, const Slab& slab, const Memory& memory, const Own& own,
                       const Rows& queries, const Right& right, int chunk, uint8_t* stage) {
  Places low[2], high[2];  // of the offsets that lead a query to a key of the slab
  bool is_inside = true;   // all do, for each query of the tile
#pragma unroll
  for (int axis = kFirstAxis; axis < 3; axis++) {
    const int start = slab.keys.first[axis] << bits_of(p, axis);
    const int wide = smaller((slab.keys.last[axis] + 1) << bits_of(p, axis), p.size[axis]) - start;
    const int before = home.tile.at[axis] - start, after = before + tile_size(p, axis) - 1;
    is_inside = is_inside && before >= home.half[axis] && after + home.half[axis] < wide;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int to_first = start - slab.low[axis] - own.at[r].at[axis], to_last = to_first + wide - 1;
      low[r].set(p, axis, own.position[r] < 0 || to_last < 0 ? kMost : to_first), high[r].set(p, axis, to_last);
    }
  }
#pragma unroll 1
  for (int j = 0; j < 2 * kBlocks; j += kAtOnce) {
    const int first = (chunk * 2 * kBlocks + j) * 16;
    if (first >= slab.size) break;
    float scores[kAtOnce][2][4] = {};
#pragma unroll kUnrolledSteps
    for (int step = 0; step < kSteps; step++)
#pragma unroll
      for (int k = 0; k < kAtOnce; k++) {
        Block b;
        right.load_columns(b, stage + ((j + k) / kBlocks) * kPartBytes, ((j + k) % kBlocks) * 16, step);
        multiply(scores[k][0], scores[k][1], queries.get(p, step), b);
      }
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const int start = first + 16 * k;
      if (start >= slab.size) break;
      const auto number = [&](int t, int i) { return start + 8 * t + 2 * (lane() & 3) + (i & 1); };
      if (!HAS_FACTOR)
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            scores[k][t][i] *= p.scale * kLog2E;
            if (HAS_ADDEND) scores[k][t][i] += memory.addend[number(t, i)];
          }
      if (only_pairs && !is_inside)
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const Places place = {memory.places[number(t, i)]};
            if (!place.is_between(p, low[i / 2], high[i / 2])) scores[k][t][i] = 0.f;
          }
#pragma unroll
      for (int t = 0; t < 2; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          write(memory.table + own.scores[i / 2] + number(t, i), scores[k][t][i]);
    }
  }
}

// The keys of a tile in reach of a thread's queries, and what it needs to find their scores.
struct Pairs {
  uint64_t line[2], reach[2], shown[2];  // bits of keys; of the last two from the thread's first one
  int number[2];  // of the offset from a query to that key
  const Score* score[2];   // of that pair, in the table
  const float* factor[2];  // of that offset

  // For each tile of a walk in turn.
  DEVICE void update(const Params& p, const Home& home, const Slab& slab, const Memory& memory, const Own& own,
                     const Walk& walk, const int32_t* labels) {
    const Place keys = start_of(p, walk);
    uint64_t kept = ~uint64_t(0);
    if (HAS_KEY_MASK) {
      const int32_t* is_kept = labels + 2 * kTile;
      kept = ballot(is_kept[lane()] != 0) | uint64_t(ballot(is_kept[32 + lane()] != 0)) << 32;
    }
    if (walk.begins_a_line())
#pragma unroll
      for (int r = 0; r < 2; r++) {
        line[r] = own.position[r] < 0 ? 0 : ~uint64_t(0);
#pragma unroll
        for (int axis = kFirstAxis; axis < 2; axis++) line[r] &= along(p, home, keys, axis, own.at[r].at[axis]);
      }
    const int first = slab.number(home, keys);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      reach[r] = line[r] & along(p, home, keys, 2, own.at[r].at[2]);
      if (CAUSAL == 1) reach[r] &= not_after(p, keys, own.at[r]);
      reach[r] >>= 2 * (lane() & 3);
      shown[r] = reach[r] & kept >> 2 * (lane() & 3);
      number[r] = first - slab.number(own.in[r]) + slab.number(within(p, 2 * (lane() & 3)));
      score[r] = memory.table + own.scores[r] + number[r];
      factor[r] = memory.factor + number[r];
    }
  }
};

// Copies a part of the keys and values of a tile to a stage and, with the first part of tile `number` of a slab, notes
// their segments and which are kept.
DEVICE void copy_keys(const Params& p, const Home& home, const Place& keys, const Memory& memory, uint8_t* stage,
                      int part, int number) {
  const auto from = [&](int own, int same) { return row_of(p, keys, own, part * ROWS + same); };
  if (HAS_KEY) copy_part(p, stage, home.key_features(p, p.key), p.key_heads, from);
  copy_part(p, stage + kPartBytes, home.key_features(p, p.value), p.key_heads, from);
  if ((HAS_SEGMENTS || HAS_KEY_MASK) && part == 0 && thread() < kTile) {
    const int at = position(p, keys, thread());
    int32_t* labels = memory.labels + (number & 1) * kTile + thread();
    if (HAS_SEGMENTS) labels[0] = at < 0 ? 0 : p.segments[home.keys_at(p) + at];
    if (HAS_KEY_MASK) labels[2 * kTile] = at < 0 ? 0 : p.key_mask[home.keys_at(p) + at];
  }
}

}  // namespace posattn
