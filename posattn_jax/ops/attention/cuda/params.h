// What a kernel gets. `program.py` reads the fields from here: one a line.
#pragma once

namespace posattn {

struct Params {
  // Shapes. query: [outer batch positions heads features]. key, value: the same with key_heads, each of which serves
  // group = heads / key_heads heads of queries, in order. encoding: [outer *relative heads features].
  // Biases: [outer heads features]. factor, addend: [outer table_heads *relative]. tangents: [outer table_heads
  // *relative num_tangents]. key_mask, segments: [outer batch positions]. half: [outer half_heads 3], half-spans.
  // query_rows: [outer 2], the first row of queries that is asked for, along `rows_axis`, and the end of those that are.
  // encoded: the largest offsets that encodings and tables hold, relative = 2 encoded + 1.
  // All but query, value and half may be null.
  const In *query;
  const In *key;
  const In *value;
  const In *encoding;
  const In *content_bias;
  const In *position_bias;
  const float *factor;
  const float *addend;
  const float *tangents;
  const uint8_t *key_mask;
  const int32_t *segments;
  const int32_t *half;
  const int32_t *query_rows;
  // As the query; and per query and head a logit near the largest, in units of ln 2, and 1 /
  // sum of 2^(logit - that).
  In *outputs;
  float *statistics;
  // Gradients have the shapes of what they are of, tables one entry for every head. d_tangents: [outer heads
  // num_tangents]. Null: not wanted.
  const In *cotangent;
  In *d_query;
  In *d_key;
  In *d_value;
  float *d_encoding;
  float *d_content_bias;
  float *d_position_bias;
  float *d_addend;
  float *d_tangents;
  // What the pass over queries leaves for the one over keys. removed: -dO . O, [outer batch heads positions]. weights:
  // for each unit, tile of queries, and tile of keys in reach, 16 blocks of 16 x 16. active: a byte for each row of
  // blocks, with a bit for each block that was written.
  float *removed;
  uint4 *weights;
  uint8_t *active;
  int32_t outer;
  int32_t batch;
  int32_t heads;
  int32_t key_heads;
  int32_t group;
  int32_t features;
  int32_t size[3];
  int32_t encoded[3];
  int32_t rows_axis;
  int32_t bits[3];
  int32_t table_heads;
  int32_t half_heads;
  int32_t num_tangents;
  int32_t causal;
  int32_t causal_axes[3];
  int32_t capacity;
  int32_t pitch;
  int32_t reach[3];
  int32_t first;
  float scale;
};

}  // namespace posattn
