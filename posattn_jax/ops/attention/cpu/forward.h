// The forward pass: an online softmax over the segments of keys that a tile visits.
#pragma once

#include "attention.h"

namespace posattn {

struct Forward {
  T *outputs;     // [outer batch positions heads features]
  T *statistics;  // [outer batch positions heads 2]: a logit m near the largest, and 1 / sum of exp(logit - m)
};

// m follows the largest logit only when that is larger by this much, so that sums are rarely rescaled.
constexpr T kSlack = 8;

struct ForwardWorkspace {
  static constexpr int64_t kRow = kTiles * kQueries;
  ForwardWorkspace(const Problem& p) : unit(p) {
    content = features[0].resize(kRow * p.features);
    position = features[1].resize(kRow * p.features);
    outputs = features[2].resize(kRow * p.features);
    std::memset(by_offset, 0, sizeof(by_offset));
  }
  Unit unit;
  Buffer features[3];
  T *content, *position, *outputs;
  T most[kRow];
  Vector total[kRow];
  alignas(64) T by_offset[kQueries * kBand];
  alignas(64) T scores[kQueries * kWidth];
};

// Adds a segment of keys to the outputs of a tile.
inline void forward_tile(ForwardWorkspace& w, int64_t tile, int64_t x, const Segment& s) {
  Unit& unit = w.unit;
  const int64_t d = unit.p.features, at = tile * kQueries;
  unit.logits(w.content + at * d, w.position + at * d, x, s, w.by_offset, w.scores, w.scores);
  Vector most[kQueries], excess = splat(-1);
  for (int i = 0; i < kQueries; i++) {
    const T* row = w.scores + i * kWidth;
    most[i] = load(row);
    for (int64_t k = kLanes; k < s.width(); k += kLanes) most[i] = larger(most[i], load(row + k));
    excess = larger(excess, most[i] - w.most[at + i]);
  }
  if (largest(excess) > kSlack)
    for (int i = 0; i < kQueries; i++) {
      const T found = largest(most[i]);
      // Each query by its own logits: its outputs are the same bits whatever other queries of the tile see.
      if (!(found - w.most[at + i] > kSlack)) continue;
      const T decay = std::exp(w.most[at + i] - found);
      w.most[at + i] = found;
      w.total[at + i] *= decay;
      for (T* x = w.outputs + (at + i) * d; x < w.outputs + (at + i + 1) * d; x += kLanes) store(x, load(x) * decay);
    }
  Vector sums{};
  for (int i = 0; i < kQueries; i++) {
    T* row = w.scores + i * kWidth;
    const Vector reference = splat(w.most[at + i]);
    Vector total = w.total[at + i];
    for (int64_t k = 0; k < s.width(); k += kLanes) {
      const Vector weights = exponential(load(row + k) - reference);
      store(row + k, weights);
      total += weights;
    }
    w.total[at + i] = total;
    sums += total;
  }
  unit.is_finite &= sum(sums - sums) == 0;
  const T* values = unit.value + (s.row * unit.p.size[2] + s.low) * d;
  product(w.scores, kWidth, values, d, s.width(), w.outputs + at * d, d, d, true);
}

// All queries in rows [from, to) of one example and head.
inline void forward_rows(ForwardWorkspace& w, int64_t from, int64_t to, const Forward& result) {
  const Unit& unit = w.unit;
  const Problem& p = unit.p;
  for (int64_t row = from; row < to; row++)
    for (int64_t start = 0; start < p.size[2]; start += w.kRow) {
      if (unit.is_idle(row, start)) continue;
      if (p.key) unit.load_queries(p.query, p.content_bias, unit.scale(), row, start, w.content);
      if (p.encoding) unit.load_queries(p.query, p.position_bias, unit.scale(), row, start, w.position);
      clear(w.outputs, unit.queries(start) * p.features);
      for (int64_t i = 0; i < unit.queries(start); i++) w.most[i] = kLowest, w.total[i] = Vector{};
      unit.for_each_segment(row, start, [&](int64_t tile, int64_t x, const Segment& s) { forward_tile(w, tile, x, s); });
      for (int64_t i = 0; i < w.kRow && start + i < p.size[2]; i++) {
        const T total = sum(w.total[i]), inverse = total == 0 ? 1 : 1 / total;
        const int64_t at = unit.features_at(row * p.size[2] + start + i);
        for (int64_t f = 0; f < p.features; f += kLanes)
          store(result.outputs + at + f, load(w.outputs + i * p.features + f) * inverse);
        result.statistics[at / p.features * 2] = w.most[i];
        result.statistics[at / p.features * 2 + 1] = inverse;
      }
    }
}

}  // namespace posattn
