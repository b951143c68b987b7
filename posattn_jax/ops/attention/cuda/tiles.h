// Tiles of 64 positions, the keys that a tile of queries meets, and how features get into shared memory.
//
// A tile is a box of positions whose sizes are powers of two, `1 << bits`. Position i of it has the coordinates that the
// bits of i say. A block of four warps works on one tile; each warp has 16 of its positions.
#pragma once

namespace posattn {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
// As in `posattn_jax.ops.scores`, in units of ln 2: logits below `kLowest` hide their pair.
constexpr float kLowest = -1e29f * kLog2E, kHidden = -3e38f;
constexpr int kTile = 64, kThreads = 128, kWarpRows = 16;
constexpr int kSteps = WIDTH / 16;  // of a product over features
constexpr int kRowBytes = WIDTH * 2 * PLANES, kTileBytes = kTile * kRowBytes;
// A tile passes in parts of ROWS rows. A stage holds a part of keys and one of values, or encodings. There are STAGES of
// them, 2 or 1: whether a part is copied while the one before it is used.
constexpr int kParts = kTile / ROWS, kPartBytes = ROWS * kRowBytes, kStageBytes = 2 * kPartBytes;
constexpr int kBlocks = ROWS / 16, kAhead = STAGES - 1;
// Where a warp's queries are kept: in registers; with KEPT in shared memory; or else they are read again each time.
constexpr bool kInRegisters = PLANES * WIDTH <= 64, kIsKept = !kInRegisters && KEPT;
constexpr int kUnrolledSteps = kInRegisters || kIsKept ? kSteps : 2;  // of a product with them

// What a problem has is known while compiling for a GPU, and a question of null pointers otherwise.
#ifndef HAS_KEY
#define HAS_KEY (p.key != nullptr)
#define HAS_ENCODING (p.encoding != nullptr)
#define HAS_FACTOR (p.factor != nullptr)
#define HAS_ADDEND (p.addend != nullptr)
#define HAS_KEY_MASK (p.key_mask != nullptr)
#define HAS_SEGMENTS (p.segments != nullptr)
#define TANGENTS (p.num_tangents)
#define CAUSAL (p.causal)
#define FEATURES (p.features)
#define BITS0 (p.bits[0])
#define BITS1 (p.bits[1])
#define BITS2 (p.bits[2])
#define DIMS 3
#define IS_3D (p.size[0] > 1)
#define SLABS true
#endif
#ifndef IS_3D
#define IS_3D (DIMS == 3)
#endif
constexpr int kFirstAxis = 3 - DIMS;  // the sizes before it are 1
// How many of a tile's four blocks of 16 keys are unrolled, and how many blocks of threads should share a
// multiprocessor, in the forward pass and in that over keys: the fastest on an H100 with 64 features. With more features
// there are not enough registers.
constexpr int kUnrolled = kInRegisters ? 4 : 1, kSharing = kInRegisters ? 3 : 2;
constexpr int kMostTangents = 6;  // of a covariance of three dimensions
#ifndef LANES
static_assert(TANGENTS <= kMostTangents, "more numbers in a sigma");
#endif
constexpr int kMost = 0x7fffffff;

constexpr DEVICE int smaller(int a, int b) { return a < b ? a : b; }
constexpr DEVICE int larger(int a, int b) { return a > b ? a : b; }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }

struct Place {
  int at[3];
};

// A walk over a box of tiles, the last axis first.
struct Walk {
  int first[3] = {}, last[3] = {}, tile[3];

  DEVICE void begin() {
#pragma unroll
    for (int axis = 0; axis < 3; axis++) tile[axis] = first[axis];
  }
  DEVICE void advance() {
    bool moves = true;  // without a branch, for which an array would lie in memory
#pragma unroll
    for (int axis = 2; axis >= kFirstAxis; axis--) {
      const bool ends = axis > kFirstAxis && tile[axis] == last[axis];
      if (moves) tile[axis] = ends ? first[axis] : tile[axis] + 1;
      moves = moves && ends;
    }
  }
  DEVICE int count() const {
    return (last[0] - first[0] + 1) * (last[1] - first[1] + 1) * (last[2] - first[2] + 1);
  }
  DEVICE bool is_done() const { return tile[kFirstAxis] > last[kFirstAxis]; }
  DEVICE bool begins_a_line() const { return tile[2] == first[2]; }
};

DEVICE int bits_of(const Params& p, int axis) { return axis == 0 ? BITS0 : axis == 1 ? BITS1 : BITS2; }
DEVICE int tile_size(const Params& p, int axis) { return 1 << bits_of(p, axis); }
DEVICE int tiles_along(const Params& p, int axis) {
  return (p.size[axis] + tile_size(p, axis) - 1) >> bits_of(p, axis);
}
// The first axis along which there is more than one position, at the latest the last.
DEVICE int first_axis(const Params& p) { return p.size[0] > 1 ? 0 : p.size[1] > 1 ? 1 : 2; }
DEVICE int num_positions(const Params& p) { return p.size[0] * p.size[1] * p.size[2]; }
DEVICE int relative(const Params& p, int axis) { return 2 * p.encoded[axis] + 1; }

// The first position of a tile.
DEVICE Place start_of(const Params& p, const Walk& walk) {
  return {{walk.tile[0] << BITS0, walk.tile[1] << BITS1, walk.tile[2] << BITS2}};
}

// The coordinates of position `i` in its tile.
DEVICE Place within(const Params& p, int i) {
  return {{i >> (BITS1 + BITS2), (i >> BITS2) & ((1 << BITS1) - 1), i & ((1 << BITS2) - 1)}};
}

// The offsets from the queries of a tile to the keys of another, less that from one tile to the other: a box with a row of
// an even length along the last axis.
DEVICE int box_stride(const Params& p, int axis) {
  const int row = 2 << BITS2;
  return axis == 2 ? 1 : axis == 1 ? row : ((2 << BITS1) - 1) * row;
}
DEVICE int box_size(const Params& p) { return ((2 << BITS0) - 1) * box_stride(p, 0); }
// What position `i` of the tile of keys adds to an offset's place in the box; that of queries takes it away. For numbers
// with no bit in common this is a sum.
DEVICE int in_box(const Params& p, int i) {
  const Place in = within(p, i);
  return in.at[0] * box_stride(p, 0) + in.at[1] * box_stride(p, 1) + in.at[2];
}

// A row of an array; one that is not `on` has none, and any index.
struct Row {
  int index;
  bool on;
};

// The index of a position, or what a step adds to it.
DEVICE int index_of(const Params& p, const Place& place) {
  int index = 0;
#pragma unroll
  for (int axis = kFirstAxis; axis < 3; axis++) index = index * p.size[axis] + place.at[axis];
  return index;
}

// The row of position `own + same` of a tile, which have no bit in common; off the grid it has none. `same` is the same
// for all threads: so is what is computed from it and from the tile alone.
DEVICE Row row_of(const Params& p, const Place& tile, int own, int same = 0) {
  const Place in = within(p, own), more = within(p, same);
  bool on = true;
#pragma unroll
  for (int axis = kFirstAxis; axis < 3; axis++) on = on && in.at[axis] < p.size[axis] - tile.at[axis] - more.at[axis];
  return {index_of(p, tile) + index_of(p, in) + index_of(p, more), on};
}
// Its index; -1 off the grid.
DEVICE int position(const Params& p, const Place& tile, int i) {
  const Row row = row_of(p, tile, i);
  return row.on ? row.index : -1;
}

// The tile of a block of threads: its first position, and the example and head.
struct Home {
  Place tile = {};
  int number, example, outer, head, key_head, half[3] = {};

  // `of_keys`: a block has a head of keys, and begins with the first head of its group.
  DEVICE Home(const Params& p, bool of_keys) {
    number = block_x();
    int rest = number;
#pragma unroll
    for (int axis = 2; axis >= kFirstAxis; axis--) {
      tile.at[axis] = (rest % tiles_along(p, axis)) << bits_of(p, axis);
      rest /= tiles_along(p, axis);
    }
    const int unit = p.first + block_y(), heads = of_keys ? p.key_heads : p.heads;
    example = unit / heads;
    outer = example / p.batch;
    key_head = (unit - example * heads) / (of_keys ? 1 : p.group);
    set_head(p, (unit - example * heads) * (of_keys ? p.group : 1));
  }
  DEVICE void set_head(const Params& p, int of_queries) {
    head = of_queries;
    const int32_t* own = p.half + (outer * p.half_heads + (p.half_heads > 1 ? head : 0)) * 3;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) half[axis] = own[axis];
  }

  // Where the features of this head and example begin in an array of them, and from one position to the next.
  template <class T>
  DEVICE T* features(const Params& p, T* x) const {
    return x + (int64_t(example) * num_positions(p) * p.heads + head) * FEATURES;
  }
  DEVICE int64_t features_at(const Params& p, int position) const {
    return ((int64_t(example) * num_positions(p) + position) * p.heads + head) * FEATURES;
  }
  // The same of keys and values.
  template <class T>
  DEVICE T* key_features(const Params& p, T* x) const {
    return x + (int64_t(example) * num_positions(p) * p.key_heads + key_head) * FEATURES;
  }
  DEVICE int64_t key_features_at(const Params& p, int position) const {
    return ((int64_t(example) * num_positions(p) + position) * p.key_heads + key_head) * FEATURES;
  }
  DEVICE int64_t keys_at(const Params& p) const { return int64_t(example) * num_positions(p); }
  DEVICE int64_t bias_at(const Params& p) const { return (int64_t(outer) * p.heads + head) * FEATURES; }
  DEVICE int64_t offsets(const Params& p) const {
    return int64_t(relative(p, 0)) * relative(p, 1) * relative(p, 2);
  }
  // The index of this head's entry for offset 0 of all, in a table and in a gradient of one.
  DEVICE int64_t table_at(const Params& p) const {
    return (int64_t(outer) * p.table_heads + (p.table_heads > 1 ? head : 0)) * offsets(p);
  }
  DEVICE int64_t gradient_at(const Params& p) const { return (int64_t(outer) * p.heads + head) * offsets(p); }

  // Limits a walk over tiles of queries to those that have a query that is asked for.
  DEVICE void limit(const Params& p, Walk& queries) const {
    if (p.query_rows == nullptr) return;
    const int32_t* own = p.query_rows + 2 * outer;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) {
      const bool on = axis == p.rows_axis;  // with a branch, the walk would lie in memory
      queries.first[axis] = larger(queries.first[axis], on ? own[0] >> bits_of(p, axis) : 0);
      queries.last[axis] = smaller(queries.last[axis], on ? (own[1] - 1) >> bits_of(p, axis) : kMost);
    }
  }
  // Whether no query of this tile is asked for.
  DEVICE bool is_idle(const Params& p) const {
    Walk own;
#pragma unroll
    for (int axis = kFirstAxis; axis < 3; axis++) own.first[axis] = own.last[axis] = tile.at[axis] >> bits_of(p, axis);
    limit(p, own);
    return own.count() < 1;
  }

  // The first and last tile along an axis whose keys, or queries if `of_queries`, are in reach.
  DEVICE int first_met(const Params& p, int axis, bool of_queries) const {
    const bool after = of_queries && is_causal(p, axis);
    return (after ? tile.at[axis] : larger(tile.at[axis] - half[axis], 0)) >> bits_of(p, axis);
  }
  DEVICE int last_met(const Params& p, int axis, bool of_queries) const {
    const int own = tile.at[axis] >> bits_of(p, axis);
    if (!of_queries && is_causal(p, axis)) return own;
    return smaller(tile.at[axis] + tile_size(p, axis) - 1 + half[axis], p.size[axis] - 1) >> bits_of(p, axis);
  }
  // Whether no key lies after its query along an axis: by the axis, or in row-major order along the first one.
  static DEVICE bool is_causal(const Params& p, int axis) {
    return CAUSAL == 2 ? p.causal_axes[axis] != 0 : CAUSAL == 1 && axis == first_axis(p);
  }
};

// The place of a tile of keys among those in reach of a tile of queries: by the steps between them, or by the tile of keys
// if all are in reach.
DEVICE int slots(const Params& p) {
  int count = 1;
#pragma unroll
  for (int axis = kFirstAxis; axis < 3; axis++) count *= smaller(2 * p.reach[axis] + 1, tiles_along(p, axis));
  return count;
}
DEVICE int slot(const Params& p, const Place& queries, const Place& keys) {
  int index = 0;
#pragma unroll
  for (int axis = kFirstAxis; axis < 3; axis++) {
    const int steps = 2 * p.reach[axis] + 1, count = tiles_along(p, axis), key = keys.at[axis] >> bits_of(p, axis);
    const int own = steps < count ? key - (queries.at[axis] >> bits_of(p, axis)) + p.reach[axis] : key;
    index = index * smaller(steps, count) + own;
  }
  return index;
}

// Where the weights of a pair of tiles are kept, in 16 blocks of 16 x 16: `unit` is the example and head, counted from the
// launch's first, `number` that of the tile of queries. program.py keeps the number of all below 2^20.
DEVICE int pair_of_tiles(const Params& p, int unit, int number, const Place& queries, const Place& keys) {
  const int count = tiles_along(p, 0) * tiles_along(p, 1) * tiles_along(p, 2);
  return (unit * count + number) * slots(p) + slot(p, queries, keys);
}

// A bit for each position of a tile whose coordinate along `axis` is below `c`.
DEVICE uint64_t below(const Params& p, int axis, int c) {
  const int unit = axis == 2 ? 0 : axis == 1 ? BITS2 : BITS1 + BITS2, group = unit + bits_of(p, axis);
  const int clamped = larger(0, smaller(c, tile_size(p, axis))), wide = clamped << unit;
  if (group >= 6) return wide >= 64 ? ~uint64_t(0) : (uint64_t(1) << wide) - 1;
  const uint32_t ones = wide >= 32 ? ~0u : (1u << wide) - 1;  // repeated, as the other axes say
  const uint32_t half = group == 5 ? ones : ones * (~0u / ((1u << (1 << group)) - 1));
  return uint64_t(half) << 32 | half;
}

// The keys of the tile `keys` along one axis that the query at coordinate x may attend to.
DEVICE uint64_t along(const Params& p, const Home& home, const Place& keys, int axis, int x) {
  int last = smaller(x + home.half[axis], p.size[axis] - 1);
  if (CAUSAL == 2 && p.causal_axes[axis]) last = smaller(last, x);
  const int start = keys.at[axis];
  return below(p, axis, last + 1 - start) & ~below(p, axis, larger(x - home.half[axis], 0) - start);
}

// The keys of a tile that are not after the query at x in row-major order.
DEVICE uint64_t not_after(const Params& p, const Place& keys, const Place& x) {
  uint64_t found = below(p, 2, x.at[2] + 1 - keys.at[2]);
#pragma unroll
  for (int axis = 1; axis >= kFirstAxis; axis--) {
    const uint64_t before = below(p, axis, x.at[axis] - keys.at[axis]);
    found = before | (below(p, axis, x.at[axis] + 1 - keys.at[axis]) & ~before & found);
  }
  return found;
}

// ---- features

DEVICE float number(float x) { return x; }
DEVICE float number(bf16 x) { return of_bf16(x.bits); }

// The place in a tile of 16 bytes, 8 features, of a row, whose planes lie one after the other; neighbouring rows lie in
// different banks.
DEVICE int place_of_chunk(int row, int plane, int chunk) {
  const int turn = kRowBytes >= 128 ? row & 7 : kRowBytes == 64 ? (row >> 1) & 3 : (row >> 2) & 1;
  return row * kRowBytes + (((plane * (WIDTH / 8) + chunk) ^ turn) << 4);
}
DEVICE uint8_t* chunk_of(uint8_t* tile, int row, int plane, int chunk) {
  return tile + place_of_chunk(row, plane, chunk);
}

struct alignas(16) Chunk {
  uint32_t words[4];
};

// Writes 8 features to each plane: rounded, and in a second plane what the first one lacks.
DEVICE void write_chunk(uint8_t* tile, int row, int chunk, const float (&x)[8]) {
  float rest[8];
#pragma unroll
  for (int i = 0; i < 8; i++) rest[i] = x[i];
#pragma unroll
  for (int plane = 0; plane < PLANES; plane++) {
    Chunk c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      c.words[i] = pack(rest[2 * i], rest[2 * i + 1]);
      rest[2 * i] -= low(c.words[i]), rest[2 * i + 1] -= high(c.words[i]);
    }
    *reinterpret_cast<Chunk*>(chunk_of(tile, row, plane, chunk)) = c;
  }
}

// Whether rows of features are whole chunks, which are then aligned.
#define IS_WHOLE (FEATURES % 8 == 0)

DEVICE void read_chunk(const Params& p, const In* from, int chunk, float (&x)[8]) {
  if (IS_WHOLE) {
    if (chunk * 8 >= FEATURES) return;
    if constexpr (PLANES == 1) {
      const Chunk c = *reinterpret_cast<const Chunk*>(from + chunk * 8);
#pragma unroll
      for (int i = 0; i < 4; i++) x[2 * i] = low(c.words[i]), x[2 * i + 1] = high(c.words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float4 c = *reinterpret_cast<const float4*>(from + chunk * 8 + 4 * i);
        x[4 * i] = c.x, x[4 * i + 1] = c.y, x[4 * i + 2] = c.z, x[4 * i + 3] = c.w;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = chunk * 8 + i < FEATURES ? number(from[chunk * 8 + i]) : 0.f;
  }
}

// The rows of a part are copied by the threads in turn: row i of a thread's is `own + i * kRows`, of which it copies one
// chunk.
constexpr int kChunks = WIDTH / 8, kRows = kThreads / kChunks, kOwnRows = (ROWS + kRows - 1) / kRows;
DEVICE bool in_part(int own, int i) { return ROWS % kRows == 0 || own + i * kRows < ROWS; }

// Copies the rows of a part to shared memory: a row from row `from(own, same)` of `features`, an array of `heads`
// heads, or zeros if there is none. They are there after the next wait and, of float32, `split_part`; what is no whole
// chunk at once.
template <class From>
DEVICE void copy_part(const Params& p, uint8_t* tile, const In* features, int heads, From from) {
  const int own = thread() / kChunks, chunk = thread() % kChunks;
  const bool has = chunk * 8 < FEATURES;
  const uint32_t bytes = heads * FEATURES * int(sizeof(In));
  Row rows[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; i++)
    if (in_part(own, i)) rows[i] = from(own, i * kRows);
#pragma unroll
  for (int i = 0; i < kOwnRows; i++) {
    if (!in_part(own, i)) continue;
    const int same = i * kRows;
    // One instruction: what is the same for all rows has been added to `first`.
    const auto in_row = [&](const In* first) {
      const uint64_t at = uint64_t(uint32_t(rows[i].index)) * bytes;
      return reinterpret_cast<const In*>(reinterpret_cast<const uint8_t*>(first) + at);
    };
    if (IS_WHOLE) {
      const In* at = in_row(features + (has ? chunk * 8 : 0));
#pragma unroll
      for (int k = 0; k < PLANES; k++)
        copy_async(chunk_of(tile, own + same % 8, k, chunk) + same / 8 * 8 * kRowBytes, at + 4 * k, has && rows[i].on);
    } else {
      float x[8] = {};
      if (rows[i].on) read_chunk(p, in_row(features), chunk, x);
      write_chunk(tile, own + same, chunk, x);
    }
  }
}

// Splits float32 features into planes. A chunk's 8 numbers lie where its two planes will be: each thread splits what it
// copied.
DEVICE void split_part(const Params& p, uint8_t* tile) {
  if (PLANES == 1 || !IS_WHOLE) return;
  const int own = thread() / kChunks, chunk = thread() % kChunks;
#pragma unroll
  for (int i = 0; i < kOwnRows; i++) {
    if (!in_part(own, i)) continue;
    const int row = own + i * kRows;
    float x[8];
#pragma unroll
    for (int k = 0; k < PLANES; k++) {
      const float4 c = *reinterpret_cast<const float4*>(chunk_of(tile, row, k, chunk));
      x[4 * k] = c.x, x[4 * k + 1] = c.y, x[4 * k + 2] = c.z, x[4 * k + 3] = c.w;
    }
    write_chunk(tile, row, chunk, x);
  }
}

DEVICE uint8_t* stage_of(uint8_t* stages, int step) { return stages + (step & kAhead) * kStageBytes; }

// Makes the stage of a step ready for all threads of the block, and begins to copy(step) for the next step.
template <class Copy>
DEVICE void begin_step(const Params& p, uint8_t* stages, int step, bool has_first, Copy copy) {
  if (!kAhead) {
    sync_block();  // the stage is free
    copy(step);
  }
  if (step >= 0) {
    copy_wait<0>();
    if (has_first) split_part(p, stage_of(stages, step));
    split_part(p, stage_of(stages, step) + kPartBytes);
    sync_block();
  }
  if (kAhead) copy(step + 1);
}

// Features in global memory, plus a bias, which may be null.
struct Features {
  const In *from, *bias;
  int heads;  // of `from`

  DEVICE const In* at(const Params& p, int position) const { return from + int64_t(position) * (heads * FEATURES); }
  // A feature at a position, or 0 at none, which is negative.
  DEVICE float read(const Params& p, int position, int feature) const {
    if (position < 0 || feature >= FEATURES) return 0.f;
    const float x = number(at(p, position)[feature]);
    return bias == nullptr ? x : x + number(bias[feature]);
  }
};

// Copies the features of a tile to shared memory: to each of `tiles` plus the bias in its place, which may be null.
template <int count>
DEVICE void copy_features(const Params& p, const In* from, int heads, const Place& place,
                          uint8_t* const (&tiles)[count], const In* const (&biases)[count]) {
  constexpr int at_once = smaller(4, kTile / kRows);
  const int chunk = thread() % kChunks;
  float added[count][8] = {};
#pragma unroll
  for (int k = 0; k < count; k++)
    if (biases[k] != nullptr) read_chunk(p, biases[k], chunk, added[k]);
#pragma unroll 1
  for (int first = thread() / kChunks; first < kTile; first += at_once * kRows) {
    float x[at_once][8] = {};  // all are read before one is written
    int at[at_once];
#pragma unroll
    for (int j = 0; j < at_once; j++) {
      at[j] = position(p, place, first + j * kRows);
      if (at[j] >= 0) read_chunk(p, from + int64_t(at[j]) * (heads * FEATURES), chunk, x[j]);
    }
#pragma unroll
    for (int j = 0; j < at_once; j++)
#pragma unroll
      for (int k = 0; k < count; k++) {
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = at[j] >= 0 ? x[j][i] + added[k][i] : 0.f;
        write_chunk(tiles[k], first + j * kRows, chunk, sum);
      }
  }
}

// ---- products of 16 x 16 blocks

struct Block {
  uint32_t planes[PLANES][4];
};

// The address of a lane's row of a block of 16 x 16, by its place in the block at row 0 and step 0 of the first plane.
// Steps and planes move by whole chunks, which, turned, is an exclusive or.
DEVICE uint8_t* of_lane(uint8_t* tile, int row, int plane, int step, int place) {
  return tile + (place ^ ((plane * (WIDTH / 8) + 2 * step) << 4)) + row * kRowBytes;
}

// The left factor: 16 rows of a tile, 16 of their features.
DEVICE void load_left(Block& b, uint8_t* tile, int row, int step) {
#pragma unroll
  for (int k = 0; k < PLANES; k++)
    load_matrix(b.planes[k], of_lane(tile, row, k, step, place_of_chunk(lane() & 15, 0, lane() >> 4)));
}

// Loads right factors.
struct Right {
  int columns, rows;  // the places of the lane's rows

  DEVICE Right()
      : columns(once(place_of_chunk((lane() >> 4) * 8 + (lane() & 7), 0, (lane() >> 3) & 1))),
        rows(once(place_of_chunk(((lane() >> 3) & 1) * 8 + (lane() & 7), 0, lane() >> 4))) {}
  // With 16 rows of a tile as its columns; the product is over features.
  DEVICE void load_columns(Block& b, uint8_t* tile, int row, int step) const {
#pragma unroll
    for (int k = 0; k < PLANES; k++) load_matrix(b.planes[k], of_lane(tile, row, k, step, columns));
  }
  // With 16 features as its columns; the product is over 16 rows of a tile.
  DEVICE void load_rows(Block& b, uint8_t* tile, int row, int step) const {
#pragma unroll
    for (int k = 0; k < PLANES; k++) load_matrix_transposed(b.planes[k], of_lane(tile, row, k, step, rows));
  }
};

// Adds a product to two neighbouring blocks of 16 x 8. Of a float32's two planes the product of the lesser is left out.
DEVICE void multiply(float (&c)[4], float (&d)[4], const Block& a, const Block& b) {
  mma(c, a.planes[0], b.planes[0][0], b.planes[0][1]);
  mma(d, a.planes[0], b.planes[0][2], b.planes[0][3]);
  if constexpr (PLANES == 2) {
    mma(c, a.planes[0], b.planes[1][0], b.planes[1][1]);
    mma(d, a.planes[0], b.planes[1][2], b.planes[1][3]);
    mma(c, a.planes[1], b.planes[0][0], b.planes[0][1]);
    mma(d, a.planes[1], b.planes[0][2], b.planes[0][3]);
  }
}

// Sets one of the four words of a left factor.
DEVICE void set(Block& b, int word, float x, float y) {
#pragma unroll
  for (int k = 0; k < PLANES; k++) {
    b.planes[k][word] = pack(x, y);
    x -= low(b.planes[k][word]), y -= high(b.planes[k][word]);
  }
}
#if PLANES == 1
DEVICE void set(Block& b, int word, bf16 x, bf16 y) { b.planes[0][word] = x.bits | uint32_t(y.bits) << 16; }
#endif
// An accumulator of 16 x 16 as a left factor.
DEVICE void set(Block& b, const float (&x)[2][4]) {
#pragma unroll
  for (int t = 0; t < 2; t++)
#pragma unroll
    for (int r = 0; r < 2; r++) set(b, 2 * t + r, x[t][2 * r], x[t][2 * r + 1]);
}

// The warp's 16 rows of a tile as a left factor.
struct Rows {
  Block blocks[kInRegisters ? kSteps : 1];
  uint8_t* tile;
  Features features;
  int position[2];  // of a thread's two rows

  DEVICE void load(uint8_t* kept, const Features& read_again, const int (&own)[2]) {
    tile = kept, features = read_again, position[0] = own[0], position[1] = own[1];
    if constexpr (kInRegisters)
#pragma unroll
      for (int step = 0; step < kSteps; step++) load_left(blocks[step], tile, warp() * kWarpRows, step);
  }
  DEVICE Block get(const Params& p, int step) const {
    if constexpr (kInRegisters) return blocks[step];
    Block b;
    if constexpr (kIsKept) {
      load_left(b, tile, warp() * kWarpRows, step);
    } else {
#pragma unroll
      for (int word = 0; word < 4; word++) {
        const int at = position[word & 1], feature = step * 16 + 2 * (lane() & 3) + 8 * (word >> 1);
        set(b, word, features.read(p, at, feature), features.read(p, at, feature + 1));
      }
    }
    return b;
  }
};

// Sums for 16 rows, of all features or of some.
template <int width>
using Sums = float[width / 8][4];
using Accumulator = Sums<WIDTH>;

template <int size>
DEVICE void clear(float (&x)[size][4]) {
#pragma unroll
  for (int i = 0; i < size; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.f;
}
// Adds a left factor times 16 rows of a tile to sums of features from `first` on.
template <int size>
DEVICE void add_product(float (&sum)[size][4], const Block& a, const Right& right, uint8_t* tile, int row,
                        int first = 0) {
#pragma unroll
  for (int step = 0; step < size / 2; step++) {
    Block b;
    right.load_rows(b, tile, row, first / 16 + step);
    multiply(sum[2 * step], sum[2 * step + 1], a, b);
  }
}

DEVICE float quad_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}
DEVICE float quad_largest(float x) {
  x = larger(x, shuffle_xor(x, 1));
  return larger(x, shuffle_xor(x, 2));
}

DEVICE void write(float* to, float x) { *to = x; }
DEVICE void write(bf16* to, float x) { to->bits = bf16_bits(x); }

DEVICE void write2(bf16* to, float x, float y) { *reinterpret_cast<uint32_t*>(to) = pack(x, y); }
DEVICE void write2(float* to, float x, float y) { *reinterpret_cast<float2*>(to) = {x, y}; }

// Calls two(feature, x, y) for each pair of a thread's features in row r = 0, 1 of sums from feature `first`, times `by`;
// or one(feature, x) for each feature, if pairs are not aligned.
template <int size, class Two, class One>
DEVICE void each_feature(const Params& p, const float (&x)[size][4], int first, int r, float by, Two two, One one) {
#pragma unroll
  for (int i = 0; i < size; i++) {
    const int feature = first + 8 * i + 2 * (lane() & 3);
    const float a = x[i][2 * r] * by, b = x[i][2 * r + 1] * by;
    if (FEATURES % 2 == 0) {
      if (feature < FEATURES) two(feature, a, b);
    } else {
      if (feature < FEATURES) one(feature, a);
      if (feature + 1 < FEATURES) one(feature + 1, b);
    }
  }
}

// Writes a row of sums to the features at `at`, or adds it to the sums there.
template <int size>
DEVICE void write_row(const Params& p, In* at, const float (&x)[size][4], int r, float by, int first = 0) {
  each_feature(
      p, x, first, r, by, [=](int feature, float a, float b) { write2(at + feature, a, b); },
      [=](int feature, float a) { write(at + feature, a); });
}
template <int size>
DEVICE void add_row(const Params& p, float* at, const float (&x)[size][4], int r, float by, int first = 0) {
  each_feature(
      p, x, first, r, by, [=](int feature, float a, float b) { add2(at + feature, a, b); },
      [=](int feature, float a) { add(at + feature, a); });
}

}  // namespace posattn
