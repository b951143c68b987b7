// The problem that the kernel solves, and the logits of a tile of queries, which both passes need.
//
//   logits[t, s] = factor[s - t] ((q_t + u) . k_s + (q_t + v) . E[s - t]) + addend[s - t] + key_addend[s]
//
// Grids have three sizes, [S0, S1, S2]; a grid of fewer dimensions starts with sizes of 1. The keys of a query are
// visited row by row; a row lies along the last dimension. A tile is kQueries neighbouring queries of one row. The
// products of a tile with the encodings of a row of offsets are one dense matrix product. Query i reads its results
// shifted by i columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "vectors.h"

namespace posattn {

// As in `posattn_jax.ops.scores`.
constexpr T kMasked = -1e30, kLowest = kMasked / 10;
// kSegment: the most keys that a tile visits at once. kTiles: neighbouring tiles that visit a row of keys together.
constexpr int64_t kSegment = 192, kTiles = 64 / kQueries;
// Elements that may be read beyond either end of a row, and are ignored: whole vectors and whole tiles are read.
constexpr int64_t kMargin = 8;
// The vector that starts at lanes[kLanes - n], added to logits, masks all lanes but the first n.
struct Beyond {
  T lanes[2 * kLanes];
  constexpr Beyond() : lanes() {
    for (int i = kLanes; i < 2 * kLanes; i++) lanes[i] = kMasked;
  }
};
constexpr Beyond kBeyond;  // not inline: the libraries of float and double would share the one that is loaded first
constexpr int64_t kWidth = kSegment + kMargin, kBand = kWidth + 4 * kMargin;

struct Problem {
  int64_t outer, batch, heads, key_heads, features;
  int64_t size[3];
  int64_t encoded[3];  // the largest offsets that `encoding` holds
  int64_t table_heads, half_heads;  // 1 for all heads, or as many as there are
  int64_t rows_axis;  // along which `query_rows` are counted
  bool causal;  // over positions in row-major order
  int64_t causal_axes[3];  // whether attention is causal along each dimension
  T scale;  // multiplies the queries where there is no table of factors
  // Shapes. query: [outer batch positions heads features]. key, value: the same with key_heads, each of which serves
  // heads / key_heads heads of queries, in order. encoding: [outer *(2 encoded + 1) heads features].
  // Biases: [outer heads features]. factor, addend: [outer table_heads *relative], the last axis with a margin at both
  // ends. key_addend, segments: [outer batch positions], each row of the grid with a margin at its end. half: [outer
  // half_heads 3], half-spans. query_rows: [outer 2], the first row of queries that is asked for and the end of those
  // that are. All but query, value and half may be null.
  const T *query, *key, *value, *encoding, *content_bias, *position_bias, *factor, *addend, *key_addend;
  const int32_t *half, *segments, *query_rows;

  int64_t rows() const { return size[0] * size[1]; }
  int64_t positions() const { return rows() * size[2]; }
  int64_t relative(int axis) const { return 2 * size[axis] - 1; }
  int64_t table_row() const { return relative(2) + 2 * kMargin; }
  int64_t table() const { return relative(0) * relative(1) * table_row(); }
  int64_t encodings() const { return (2 * encoded[0] + 1) * (2 * encoded[1] + 1) * (2 * encoded[2] + 1); }
  int64_t key_row() const { return size[2] + kMargin; }
};

// An array, not initialised, that starts at a cache line.
class Buffer {
 public:
  T* resize(int64_t count) {
    if (count > count_) {
      data_.reset(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)));
      count_ = count;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* x) const { std::free(x); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t count_ = 0;
};

// Keys that a tile visits at once: columns [low, high) of row `row`. Its offset from the queries' row is `offset`.
struct Segment {
  int64_t row, offset[2], low, high;
  int64_t width() const { return high - low; }
};

// The arrays of one head of one example, copied so that each is contiguous.
class Unit {
 public:
  Unit(const Problem& problem) : p(problem) {}

  // Chooses a head. Copies the encodings within its span: [rows, offsets, features] and [rows, features, offsets].
  void set_head(int64_t outer, int64_t head) {
    const int64_t d = p.features;
    o = outer, h = head;
    for (int i = 0; i < 3; i++) {
      half[i] = p.half[(o * p.half_heads + (p.half_heads > 1 ? h : 0)) * 3 + i];
      box[i] = 2 * half[i] + 1;
    }
    const int64_t table = (o * p.table_heads + (p.table_heads > 1 ? h : 0)) * p.table();
    factor = p.factor ? p.factor + table : nullptr;
    addend = p.addend ? p.addend + table : nullptr;
    if (!p.encoding) return;
    band = box[2] + kMargin;
    T* rows = encoding_.resize(box[0] * box[1] * box[2] * d);
    T* columns = encoding_t_.resize(box[0] * box[1] * band * d);
    encoding = rows, encoding_t = columns;
    for (int64_t i = 0; i < box[0]; i++)
      for (int64_t j = 0; j < box[1]; j++) {
        for (int64_t k = 0; k < box[2]; k++) copy(p.encoding + encoding_at(i, j, k), d, rows + k * d);
        transpose(rows, box[2], d, columns, band);
        check(rows, box[2] * d);
        rows += box[2] * d, columns += band * d;
      }
  }

  // Chooses an example, and copies its keys and values. `backward` also needs the transposed values.
  void set_example(int64_t example, bool backward) {
    b = example;
    if (p.key) {
      T* rows = gathered(key_, p.key);
      key = rows;
      key_t = transposed(key_t_, rows);
    }
    T* rows = gathered(value_, p.value);
    value = rows;
    if (backward) value_t = transposed(value_t_, rows);
    const int64_t keys = (o * p.batch + b) * p.rows() * p.key_row();
    key_addend = p.key_addend ? p.key_addend + keys : nullptr;
    segments = p.segments ? p.segments + keys : nullptr;
  }

  // Notes if encodings are not finite: an offset that no key of this head has would show it in another head.
  void check(const T* x, int64_t count) {
    Vector zero{};
    for (int64_t f = 0; f < count; f += kLanes) zero += load(x + f) - load(x + f);
    is_finite &= sum(zero) == 0;
  }

  // Index of a position's features in query, and in gradients of key and value, which are of each head of queries.
  int64_t features_at(int64_t position) const {
    return (((o * p.batch + b) * p.positions() + position) * p.heads + h) * p.features;
  }
  // The factor of the queries.
  T scale() const { return factor ? 1 : p.scale; }
  // Index of the features of an offset, which is at i, j, k in the box of the span.
  int64_t encoding_at(int64_t i, int64_t j, int64_t k) const {
    int64_t index = o;
    const int64_t at[3] = {i, j, k};
    for (int axis = 0; axis < 3; axis++)
      index = index * (2 * p.encoded[axis] + 1) + at[axis] - half[axis] + p.encoded[axis];
    return (index * p.heads + h) * p.features;
  }
  int64_t relative_row(int64_t i, int64_t j) const {
    return (i + p.size[0] - 1) * p.relative(1) + j + p.size[1] - 1;
  }
  int64_t box_row(const Segment& s) const { return (s.offset[0] + half[0]) * box[1] + s.offset[1] + half[1]; }
  // Index in a table: the offset from the first query of the tile at x to the first key of a segment.
  int64_t table_at(const Segment& s, int64_t x) const {
    return relative_row(s.offset[0], s.offset[1]) * p.table_row() + kMargin + p.size[2] - 1 + s.low - x;
  }

  // The offsets between the tile at x and a segment that lie within the span: the lowest, and how many.
  int64_t band_low(const Segment& s, int64_t x) const { return std::max(-half[2], s.low - (x + kQueries - 1)); }
  int64_t band_width(const Segment& s, int64_t x) const {
    return std::min(half[2], s.high - 1 - x) - band_low(s, x) + 1;
  }

  // Computes the logits [kQueries, kWidth] of the tile at x and a segment. `scores` gets the sums of products before
  // factor and addends, unless it is the same array as `logits`.
  void logits(const T* content_query, const T* position_query, int64_t x, const Segment& s, T* by_offset, T* scores,
              T* logits) const {
    const int64_t d = p.features, width = s.width();
    if (p.key)
      product(content_query, d, key_t + s.row * d * p.key_row() + s.low, p.key_row(), d, scores, kWidth, width, false);
    else
      std::memset(scores, 0, kQueries * kWidth * sizeof(T));
    if (p.encoding) {
      const int64_t low = band_low(s, x), first = kMargin + s.low - x - low;
      const int64_t of_band = band_width(s, x);
      product(position_query, d, encoding_t + box_row(s) * band * d + low + half[2], band, d, by_offset + kMargin, kBand,
              of_band, false);
      for (int i = 0; i < kQueries; i++) {
        T* row = by_offset + i * kBand;
        if (!is_finite) {  // what is read beyond the band is masked, but NaN that another query left there would not be
          clear(row, kMargin);
          clear(row + kMargin + (of_band + kLanes - 1) / kLanes * kLanes, 2 * kMargin);
        }
        for (int64_t k = 0; k < width; k += kLanes) {
          T* to = scores + i * kWidth + k;
          store(to, load(to) + load(row + first - i + k));
        }
      }
    }
    const int64_t table = table_at(s, x);
    const bool as_they_are = logits == scores && !factor && !addend && !key_addend && !segments;
    const int64_t query_row = (s.row / p.size[1] - s.offset[0]) * p.size[1] + s.row % p.size[1] - s.offset[1];
    const int32_t* own = segments ? segments + query_row * p.key_row() + x : nullptr;
    for (int64_t k = as_they_are ? width / kLanes * kLanes : 0; k < width; k += kLanes) {
      Vector of_key = load(kBeyond.lanes + kLanes - std::min<int64_t>(width - k, kLanes));
      if (key_addend) of_key += load(key_addend + s.row * p.key_row() + s.low + k);
      for (int i = 0; i < kQueries; i++) {
        Vector v = load(scores + i * kWidth + k);
        v = factor ? v * load(factor + table - i + k) : v;
        v = addend ? v + load(addend + table - i + k) : v;
        if (segments) {
          Vector apart;
          for (int lane = 0; lane < kLanes; lane++)
            apart[lane] = segments[s.row * p.key_row() + s.low + k + lane] == own[i] ? 0 : kMasked;
          v += apart;
        }
        store(logits + i * kWidth + k, v + of_key);
      }
    }
  }

  // Calls visit(tile, x, segment) for kTiles tiles of a row of queries from column `start`, one row of keys after the
  // other.
  template <typename Visit>
  void for_each_segment(int64_t row, int64_t start, Visit visit) const {
    const int64_t y[2] = {row / p.size[1], row % p.size[1]}, end = std::min(start + kTiles * kQueries, p.size[2]);
    int64_t from[2], to[2];
    for (int i = 0; i < 2; i++) {
      from[i] = std::max<int64_t>(y[i] - half[i], 0);
      to[i] = p.causal_axes[i] ? y[i] : std::min(y[i] + half[i], p.size[i] - 1);
    }
    const int64_t first = std::max<int64_t>(start - half[2], 0), last = std::min(end + half[2], p.size[2]);
    const int64_t step = last - first <= kSegment ? kSegment : 2 * kSegment / 3;
    for (int64_t z0 = from[0]; z0 <= to[0]; z0++)
      for (int64_t z1 = from[1]; z1 <= to[1]; z1++) {
        const int64_t key_row = z0 * p.size[1] + z1;
        if (p.causal && key_row > row) return;
        for (int64_t segment = first; segment < last; segment += step)
          for (int64_t tile = 0; start + tile * kQueries < end; tile++) {
            const int64_t x = start + tile * kQueries;
            const int64_t reach = (p.causal && key_row == row) || p.causal_axes[2] ? 0 : half[2];
            Segment s{key_row, {z0 - y[0], z1 - y[1]}};
            s.low = std::max(segment, x - half[2]);
            s.high = std::min({segment + step, x + kQueries + reach, last});
            if (segments) narrow(row, x, s);
            if (s.low < s.high) visit(tile, x, s);
          }
      }
  }

  // Drops keys at both ends of `s` whose segment id lies outside the range of those of the tile's queries.
  void narrow(int64_t row, int64_t x, Segment& s) const {
    const int32_t *own = segments + row * p.key_row(), *of_keys = segments + s.row * p.key_row();
    const auto [least, most] = std::minmax_element(own + x, own + std::min(x + kQueries, p.size[2]));
    const auto outside = [&](int64_t key) { return of_keys[key] < *least || of_keys[key] > *most; };
    while (s.low < s.high && outside(s.low)) s.low++;
    while (s.low < s.high && outside(s.high - 1)) s.high--;
  }

  // Whether none of the queries of a row from column `start` is asked for.
  bool is_idle(int64_t row, int64_t start) const {
    if (!p.query_rows) return false;
    const int64_t at[3] = {row / p.size[1], row % p.size[1], start};
    const int64_t end = at[p.rows_axis] + (p.rows_axis == 2 ? queries(start) : 1);
    return end <= p.query_rows[2 * o] || at[p.rows_axis] >= p.query_rows[2 * o + 1];
  }

  // How many queries the tiles from column `start` have, those beyond the row included.
  int64_t queries(int64_t start) const {
    return std::min(kTiles * kQueries, (p.size[2] - start + kQueries - 1) / kQueries * kQueries);
  }

  // Copies (query + bias) scale to [queries(start), features]. Queries beyond the row are 0.
  void load_queries(const T* from, const T* bias, T scale, int64_t row, int64_t start, T* to) const {
    const int64_t d = p.features;
    for (int64_t i = 0; i < queries(start); i++) {
      if (start + i >= p.size[2]) {
        clear(to + i * d, d);
        continue;
      }
      copy(from + features_at(row * p.size[2] + start + i), d, to + i * d);
      if (bias) add(to + i * d, bias + (o * p.heads + h) * d, d);
      if (scale != 1) posattn::scale(to + i * d, scale, d);
    }
  }

  const Problem& p;
  int64_t o, b, h, half[3], box[3], band = 0;
  const T *key = nullptr, *value = nullptr, *key_t = nullptr, *value_t = nullptr, *encoding = nullptr,
          *encoding_t = nullptr, *factor = nullptr, *addend = nullptr, *key_addend = nullptr;
  const int32_t* segments = nullptr;
  bool is_finite = true;  // all that has been computed so far

 private:
  T* gathered(Buffer& buffer, const T* from) {
    T* to = buffer.resize(p.positions() * p.features);
    const int64_t head = h / (p.heads / p.key_heads), first = (o * p.batch + b) * p.positions();
    for (int64_t n = 0; n < p.positions(); n++)
      copy(from + ((first + n) * p.key_heads + head) * p.features, p.features, to + n * p.features);
    return to;
  }
  // The transposed rows: [rows, features, key_row].
  T* transposed(Buffer& buffer, const T* from) {
    T* to = buffer.resize(p.rows() * p.features * p.key_row());
    for (int64_t row = 0; row < p.rows(); row++)
      transpose(from + row * p.size[2] * p.features, p.size[2], p.features, to + row * p.features * p.key_row(),
                p.key_row());
    return to;
  }

  Buffer key_, value_, key_t_, value_t_, encoding_, encoding_t_;
};

}  // namespace posattn
