// The two functions that XLA calls on a CPU. `program.py` describes their arguments.
#include "backward.h"
#include "forward.h"
#include "pool.h"

namespace posattn {

namespace ffi = xla::ffi;

using In = ffi::Buffer<sizeof(T) == 4 ? ffi::F32 : ffi::F64>;
using Out = ffi::Result<In>;
using Numbers = ffi::Buffer<ffi::S32>;

inline T* data(In x) { return x.element_count() ? x.typed_data() : nullptr; }
inline T* data(Out x) { return data(*x); }

Problem problem_of(In query, In key, In value, In encoding, In content_bias, In position_bias, In factor, In addend,
                   In key_addend, Numbers half, Numbers segments, Numbers query_rows, ffi::Span<const int64_t> size,
                   int64_t rows_axis, bool causal, ffi::Span<const int64_t> causal_axes, double scale) {
  const auto x = query.dimensions();
  Problem p{x[0], x[1], x[3], value.dimensions()[3], x[4], {size[0], size[1], size[2]}};
  const auto offsets = encoding.dimensions();  // without features: none, or [0]
  for (int axis = 2, i = int(offsets.size()) - 3; axis >= 0 && i > 0; axis--, i--) p.encoded[axis] = (offsets[i] - 1) / 2;
  p.table_heads = factor.element_count() ? factor.dimensions()[1] : addend.element_count() ? addend.dimensions()[1] : 1;
  p.half_heads = half.dimensions()[1];
  p.rows_axis = rows_axis;
  p.causal = causal;
  std::copy(causal_axes.begin(), causal_axes.end(), p.causal_axes);
  p.scale = scale;
  p.query = data(query), p.key = data(key), p.value = data(value), p.encoding = data(encoding);
  p.content_bias = data(content_bias), p.position_bias = data(position_bias);
  p.factor = data(factor), p.addend = data(addend), p.key_addend = data(key_addend);
  p.half = half.typed_data();
  p.segments = segments.element_count() ? segments.typed_data() : nullptr;
  p.query_rows = query_rows.element_count() ? query_rows.typed_data() : nullptr;
  return p;
}

// A task is one example and head, or a part of its rows if there would be too few tasks for the threads.
ffi::Error forward(ffi::ThreadPool pool, In query, In key, In value, In encoding, In content_bias, In position_bias,
                   In factor, In addend, In key_addend, Numbers half, Numbers segments, Numbers query_rows, Out outputs,
                   Out statistics, ffi::Span<const int64_t> size, int64_t rows_axis, bool causal,
                   ffi::Span<const int64_t> causal_axes, double scale) {
  const Problem p = problem_of(query, key, value, encoding, content_bias, position_bias, factor, addend, key_addend,
                               half, segments, query_rows, size, rows_axis, causal, causal_axes, scale);
  const Forward result{data(outputs), data(statistics)};
  const int64_t units = p.outer * p.heads * p.batch, wanted = 4 * pool.num_threads();
  const int64_t parts = std::clamp<int64_t>(wanted / std::max<int64_t>(units, 1), 1, p.rows());
  parallel(pool, units * parts, [&] {
    auto w = std::make_shared<ForwardWorkspace>(p);
    return [&, w, last = int64_t(-1)](int64_t task) mutable {
      const int64_t unit = task / parts, part = task % parts, head = unit / p.batch;
      if (unit != last) {
        if (last < 0 || head != last / p.batch) w->unit.set_head(head / p.heads, head % p.heads);
        w->unit.set_example(unit % p.batch, false);
        last = unit;
      }
      forward_rows(*w, part * p.rows() / parts, (part + 1) * p.rows() / parts, result);
    };
  });
  return ffi::Error::Success();
}

// A task is one head of a group of examples.
ffi::Error backward(ffi::ThreadPool pool, In query, In key, In value, In encoding, In content_bias, In position_bias,
                    In factor, In addend, In key_addend, Numbers half, Numbers segments, Numbers query_rows,
                    In outputs, In statistics, In cotangent, Out d_query, Out d_key, Out d_value, Out d_encoding,
                    Out d_content_bias, Out d_position_bias, Out d_factor, Out d_addend,
                    ffi::Span<const int64_t> size, int64_t rows_axis, bool causal,
                    ffi::Span<const int64_t> causal_axes, double scale, int64_t groups) {
  const Problem p = problem_of(query, key, value, encoding, content_bias, position_bias, factor, addend, key_addend,
                               half, segments, query_rows, size, rows_axis, causal, causal_axes, scale);
  const Backward gradients{data(outputs),        data(statistics),      data(cotangent), data(d_query), data(d_key),
                           data(d_value),        data(d_encoding),      data(d_content_bias),
                           data(d_position_bias), data(d_factor),       data(d_addend),  groups};
  parallel(pool, groups * p.outer * p.heads, [&] {
    auto w = std::make_shared<BackwardWorkspace>(p);
    return [&, w](int64_t task) {
      backward_group(*w, task % groups, task / groups / p.heads, task / groups % p.heads, gradients);
    };
  });
  return ffi::Error::Success();
}

#define ARRAYS                                                                                                   \
  .Ctx<ffi::ThreadPool>().Arg<In>().Arg<In>().Arg<In>().Arg<In>().Arg<In>().Arg<In>().Arg<In>().Arg<In>().Arg<In>() \
      .Arg<Numbers>().Arg<Numbers>().Arg<Numbers>()
#define ATTRIBUTES                                                                                    \
  .Attr<ffi::Span<const int64_t>>("size").Attr<int64_t>("rows_axis").Attr<bool>("causal")               \
      .Attr<ffi::Span<const int64_t>>("causal_axes").Attr<double>("scale")

XLA_FFI_DEFINE_HANDLER_SYMBOL(posattn_forward, forward, ffi::Ffi::Bind() ARRAYS.Ret<In>().Ret<In>() ATTRIBUTES);
XLA_FFI_DEFINE_HANDLER_SYMBOL(posattn_backward, backward,
                              ffi::Ffi::Bind() ARRAYS.Arg<In>().Arg<In>().Arg<In>().Ret<In>().Ret<In>().Ret<In>()
                                  .Ret<In>().Ret<In>().Ret<In>().Ret<In>().Ret<In>() ATTRIBUTES.Attr<int64_t>("groups"));

}  // namespace posattn
