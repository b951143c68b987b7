// Vectors of SCALAR, their exponential, and the two matrix products of attention.
//
// They use GCC's vector extensions, which Clang supports too: one source for every instruction set.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace posattn {

using T = SCALAR;  // float or double, set on the compiler's command line
using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

constexpr int kLanes = 32 / sizeof(T);
#ifdef __AVX512VL__
constexpr int kQueries = 8;  // 8 x 3 sums fit into 32 registers
#else
constexpr int kQueries = 4;  // 4 x 3 sums fit into 16 registers
#endif

typedef T Vector __attribute__((vector_size(32)));
typedef Bits Integers __attribute__((vector_size(32)));
typedef T Unaligned __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));

inline Vector load(const T* x) { return *reinterpret_cast<const Unaligned*>(x); }
inline void store(T* x, Vector v) { *reinterpret_cast<Unaligned*>(x) = v; }
inline Vector splat(T x) { return x - Vector{}; }
inline Vector larger(Vector x, Vector y) { return x < y ? y : x; }

// v with every two lanes that are `distance` apart exchanged.
template <int distance>
inline Vector exchanged(Vector v) {
  Integers from;
  for (int i = 0; i < kLanes; i++) from[i] = i ^ distance;
#ifdef __clang__
  Vector to;
  for (int i = 0; i < kLanes; i++) to[i] = v[from[i]];
  return to;
#else
  return __builtin_shuffle(v, from);
#endif
}

inline T sum(Vector v) {
  v += exchanged<1>(v);
  v += exchanged<2>(v);
  if constexpr (kLanes > 4) v += exchanged<4>(v);
  return v[0];
}

inline T largest(Vector v) {
  v = larger(v, exchanged<1>(v));
  v = larger(v, exchanged<2>(v));
  if constexpr (kLanes > 4) v = larger(v, exchanged<4>(v));
  return v[0];
}

// exp(x) for x <= 0 or NaN: 2^n exp(r) with |r| <= ln 2 / 2, and exp(r) from its Taylor series.
inline Vector exponential(Vector x) {
  constexpr bool single = sizeof(T) == 4;
  constexpr int mantissa = std::numeric_limits<T>::digits - 1;
  constexpr T lowest = single ? T(-87) : T(-708);
  constexpr T shift = 1.5 * (int64_t(1) << mantissa);  // adding it rounds to n, which is then in the lowest bits
  constexpr T ln2_high = single ? 0.693359375 : 0.693147180369123816490, ln2_low = 0.693147180559945309417 - ln2_high;
  constexpr int terms = single ? 6 : 13;
  Vector n = x * T(1.44269504088896340736) + shift;
  Integers power = reinterpret_cast<Integers>(n) << mantissa;
  n -= shift;
  Vector r = x - n * ln2_high - n * ln2_low;
  Vector y = splat(1);
#pragma GCC unroll 16
  for (int k = terms; k > 0; k--) y = y * r * (T(1) / k) + T(1);
  y *= reinterpret_cast<Vector>(reinterpret_cast<Integers>(splat(1)) + power);  // a product, which keeps NaN of any bits
  return x < lowest ? Vector{} : y;
}

// out[i, x] (+)= sum_c a[i, c] b[c, x] for the queries i of a tile and V vectors of x. lda, ldb, ldo: elements per row.
template <int V>
inline void product_block(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t count, T* out, int64_t ldo, bool add) {
  Vector sums[kQueries][V];
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[i][v] = add ? load(out + i * ldo + v * kLanes) : Vector{};
  for (int64_t c = 0; c < count; c++) {
    Vector row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) row[v] = load(b + c * ldb + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; i++) {
      Vector x = splat(a[i * lda + c]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sums[i][v] += x * row[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(out + i * ldo + v * kLanes, sums[i][v]);
}

// The same for `width` values of x, rounded up to whole vectors.
inline void product(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t count, T* out, int64_t ldo, int64_t width,
                    bool add) {
  int64_t vectors = (width + kLanes - 1) / kLanes;
  for (; vectors >= 3 && vectors != 4; vectors -= 3, b += 3 * kLanes, out += 3 * kLanes)
    product_block<3>(a, lda, b, ldb, count, out, ldo, add);
  for (; vectors >= 2; vectors -= 2, b += 2 * kLanes, out += 2 * kLanes)
    product_block<2>(a, lda, b, ldb, count, out, ldo, add);
  if (vectors) product_block<1>(a, lda, b, ldb, count, out, ldo, add);
}

// out[s, f] += sum_i a[i, s] b[i, f] over the queries i of a tile, for V vectors of f.
template <int V>
inline void outer_block(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t count, T* out, int64_t ldo) {
  Vector rows[kQueries][V];
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) rows[i][v] = load(b + i * ldb + v * kLanes);
  for (int64_t s = 0; s < count; s++) {
    Vector sums[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[v] = load(out + s * ldo + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; i++) {
      Vector x = splat(a[i * lda + s]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sums[v] += x * rows[i][v];
    }
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(out + s * ldo + v * kLanes, sums[v]);
  }
}

// The same for `width` values of f, a multiple of kLanes.
inline void outer(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t count, T* out, int64_t ldo, int64_t width) {
  int64_t f = 0;
  for (; f + 2 * kLanes <= width; f += 2 * kLanes) outer_block<2>(a, lda, b + f, ldb, count, out + f, ldo);
  if (f < width) outer_block<1>(a, lda, b + f, ldb, count, out + f, ldo);
}

// Element by element; `count` is a multiple of kLanes.
inline void copy(const T* from, int64_t count, T* to) {
  for (int64_t f = 0; f < count; f += kLanes) store(to + f, load(from + f));
}
inline void clear(T* to, int64_t count) {
  for (int64_t f = 0; f < count; f += kLanes) store(to + f, Vector{});
}
inline void add(T* to, const T* x, int64_t count) {
  for (int64_t f = 0; f < count; f += kLanes) store(to + f, load(to + f) + load(x + f));
}
inline void scale(T* x, T factor, int64_t count) {
  for (int64_t f = 0; f < count; f += kLanes) store(x + f, load(x + f) * factor);
}

// Transposes [rows, columns] to [columns, ld], with ld >= rows. The rest of each row is 0.
inline void transpose(const T* x, int64_t rows, int64_t columns, T* out, int64_t ld) {
  int64_t start = 0;
  for (; start + kLanes <= rows; start += kLanes)
    for (int64_t c = 0; c < columns; c++) {
      Vector v;
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; i++) v[i] = x[(start + i) * columns + c];
      store(out + c * ld + start, v);
    }
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = start; r < ld; r++) out[c * ld + r] = r < rows ? x[r * columns + c] : 0;
}

}  // namespace posattn
