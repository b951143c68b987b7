// The backward pass, which computes the weights again.
//
//   dV_s = sum_t A_ts dO_t      dL_ts = A_ts (dO_t . V_s - dO_t . O_t)      dS_ts = factor dL_ts
//
// A: the weights. L: the logits. S: the sums of products that `factor` multiplies. O: the outputs.
#pragma once

#include "attention.h"

namespace posattn {

struct Backward {
  const T *outputs, *statistics, *cotangent;
  // Gradients, with the shapes of the problem's arrays; null: not needed. All but query, key and value are sums over
  // examples, and have one more leading axis, of `groups` groups of examples. Key, value and tables have all heads of queries.
  T *query, *key, *value, *encoding, *content_bias, *position_bias, *factor, *addend;
  int64_t groups;
};

struct BackwardWorkspace {
  static constexpr int64_t kRow = kTiles * kQueries;
  BackwardWorkspace(const Problem& p) : unit(p) {
    T** arrays[] = {&content, &position, &cotangent, &d_content, &d_position};
    for (int i = 0; i < 5; i++) *arrays[i] = features[i].resize(kRow * p.features);
    d_key = sides[0].resize(p.positions() * p.features);
    d_value = sides[1].resize(p.positions() * p.features);
    std::memset(by_offset, 0, sizeof(by_offset));
  }
  Unit unit;
  Buffer features[5], sides[2], encoding;
  T *content, *position, *cotangent, *d_content, *d_position, *d_key, *d_value, *d_encoding, *d_factor, *d_addend;
  T most[kRow], inverse[kRow], removed[kRow];  // removed: dO . O
  alignas(64) T by_offset[kQueries * kBand];
  alignas(64) T scores[kQueries * kWidth], logits[kQueries * kWidth], weights[kQueries * kWidth];
};


inline void backward_tile(BackwardWorkspace& w, int64_t tile, int64_t x, const Segment& s) {
  Unit& unit = w.unit;
  const Problem& p = unit.p;
  const int64_t d = p.features, at = tile * kQueries, first_key = s.row * p.size[2] + s.low, width = s.width();
  const int64_t table = unit.table_at(s, x);
  T* products = w.logits;  // dO . V overwrites the logits
  unit.logits(w.content + at * d, w.position + at * d, x, s, w.by_offset, w.scores, w.logits);
  for (int i = 0; i < kQueries; i++)
    for (int64_t k = i * kWidth; k < i * kWidth + width; k += kLanes)
      store(w.weights + k, exponential(load(w.logits + k) - w.most[at + i]) * w.inverse[at + i]);
  outer(w.weights, kWidth, w.cotangent + at * d, d, width, w.d_value + first_key * d, d, d);
  product(w.cotangent + at * d, d, unit.value_t + s.row * d * p.key_row() + s.low, p.key_row(), d, products, kWidth,
          width, false);
  Vector sums{};
  for (int i = 0; i < kQueries; i++)
    for (int64_t k = 0; k < width; k += kLanes) {
      const int64_t here = i * kWidth + k, there = table - i + k;
      const Vector d_logits = load(w.weights + here) * (load(products + here) - w.removed[at + i]);
      sums += d_logits;
      if (w.d_addend) store(w.d_addend + there, load(w.d_addend + there) + d_logits);
      if (w.d_factor) store(w.d_factor + there, load(w.d_factor + there) + d_logits * load(w.scores + here));
      store(w.weights + here, unit.factor ? d_logits * load(unit.factor + there) : d_logits);
    }
  unit.is_finite &= sum(sums - sums) == 0;
  const T* d_scores = w.weights;
  if (p.key) {
    product(d_scores, kWidth, unit.key + first_key * d, d, width, w.d_content + at * d, d, d, true);
    outer(d_scores, kWidth, w.content + at * d, d, width, w.d_key + first_key * d, d, d);
  }
  if (p.encoding) {
    const int64_t low = unit.band_low(s, x), band = unit.band_width(s, x), first = kMargin + s.low - x - low;
    const int64_t rows = (unit.box_row(s) * unit.box[2] + low + unit.half[2]) * d;
    for (int i = 0; i < kQueries; i++) {
      T* row = w.by_offset + i * kBand;
      clear(row, band + 2 * kMargin);
      for (int64_t k = 0; k < width; k += kLanes) store(row + first - i + k, load(d_scores + i * kWidth + k));
    }
    const T* by_offset = w.by_offset + kMargin;
    product(by_offset, kBand, unit.encoding + rows, d, band, w.d_position + at * d, d, d, true);
    outer(by_offset, kBand, w.position + at * d, d, band, w.d_encoding + rows, d, d);
  }
}

// One row of queries of an example and head.
inline void backward_row(BackwardWorkspace& w, int64_t row, const Backward& g, T* d_content_bias, T* d_position_bias) {
  const Unit& unit = w.unit;
  const Problem& p = unit.p;
  const int64_t d = p.features;
  for (int64_t start = 0; start < p.size[2]; start += w.kRow) {
    if (unit.is_idle(row, start)) continue;
    if (p.key) unit.load_queries(p.query, p.content_bias, unit.scale(), row, start, w.content);
    if (p.encoding) unit.load_queries(p.query, p.position_bias, unit.scale(), row, start, w.position);
    unit.load_queries(g.cotangent, nullptr, 1, row, start, w.cotangent);
    for (int64_t i = 0; i < unit.queries(start); i++) {
      w.most[i] = std::numeric_limits<T>::infinity();  // so that weights beyond the row are 0, whatever is added to logits
      w.inverse[i] = w.removed[i] = 0;
      if (start + i >= p.size[2]) continue;
      const int64_t at = unit.features_at(row * p.size[2] + start + i);
      w.most[i] = g.statistics[at / d * 2];
      w.inverse[i] = g.statistics[at / d * 2 + 1];
      Vector removed{};
      for (int64_t f = 0; f < d; f += kLanes) removed += load(w.cotangent + i * d + f) * load(g.outputs + at + f);
      w.removed[i] = sum(removed);
    }
    clear(w.d_content, unit.queries(start) * d);
    clear(w.d_position, unit.queries(start) * d);
    unit.for_each_segment(row, start, [&](int64_t tile, int64_t x, const Segment& s) { backward_tile(w, tile, x, s); });
    if (unit.scale() != 1) {
      scale(w.d_content, unit.scale(), unit.queries(start) * d);
      scale(w.d_position, unit.scale(), unit.queries(start) * d);
    }
    for (int64_t i = 0; i < w.kRow && start + i < p.size[2]; i++) {
      T* to = g.query + unit.features_at(row * p.size[2] + start + i);
      copy(w.d_content + i * d, d, to);
      add(to, w.d_position + i * d, d);
      if (d_content_bias) add(d_content_bias, w.d_content + i * d, d);
      if (d_position_bias) add(d_position_bias, w.d_position + i * d, d);
    }
  }
}

// One head of all examples of a group.
inline void backward_group(BackwardWorkspace& w, int64_t group, int64_t outer, int64_t head, const Backward& g) {
  Unit& unit = w.unit;
  const Problem& p = unit.p;
  const int64_t d = p.features, leading = group * p.outer + outer, of_head = leading * p.heads + head;
  unit.set_head(outer, head);
  auto of = [&](T* x, int64_t size) {
    if (x) std::memset(x + of_head * size, 0, size * sizeof(T));
    return x ? x + of_head * size : nullptr;
  };
  T *d_content_bias = of(g.content_bias, d), *d_position_bias = of(g.position_bias, d);
  w.d_factor = of(g.factor, p.table());
  w.d_addend = of(g.addend, p.table());
  const int64_t offsets = unit.box[0] * unit.box[1] * unit.box[2];
  if (p.encoding) {
    w.d_encoding = w.encoding.resize(offsets * d);
    std::memset(w.d_encoding, 0, offsets * d * sizeof(T));
  }
  for (int64_t b = group; b < p.batch; b += g.groups) {
    unit.set_example(b, true);
    std::memset(w.d_key, 0, p.positions() * d * sizeof(T));
    std::memset(w.d_value, 0, p.positions() * d * sizeof(T));
    for (int64_t row = 0; row < p.rows(); row++) backward_row(w, row, g, d_content_bias, d_position_bias);
    for (int64_t n = 0; n < p.positions(); n++) {
      if (p.key) copy(w.d_key + n * d, d, g.key + unit.features_at(n));
      copy(w.d_value + n * d, d, g.value + unit.features_at(n));
    }
  }
  if (!p.encoding) return;
  const int64_t all = p.encodings();
  T* to = g.encoding + group * p.outer * all * p.heads * d;
  for (int64_t n = 0; n < all; n++) clear(to + ((outer * all + n) * p.heads + head) * d, d);
  const T* from = w.d_encoding;
  for (int64_t i = 0; i < unit.box[0]; i++)
    for (int64_t j = 0; j < unit.box[1]; j++)
      for (int64_t k = 0; k < unit.box[2]; k++, from += d) copy(from, d, to + unit.encoding_at(i, j, k));
}

}  // namespace posattn
