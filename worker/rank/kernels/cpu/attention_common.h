#pragma once

#include <stddef.h>
#include <stdint.h>

#include "worker/rank/kernels/cpu/attention.h"
#include "worker/rank/kernels/cpu/attention_levels.h"
#include "worker/rank/kernels/cpu/inline.h"

// Shared by the bodies of all levels. Only files that are compiled for one level include this: everything here has
// internal linkage and uses nothing of the C++ library, so that no older machine runs code for a newer one.
namespace titan::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLowest = -3.402823466e+38f;
constexpr float kInfinity = __builtin_inff();

TITAN_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TITAN_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
TITAN_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

TITAN_INLINE float float_of(uint16_t bf16) { return __builtin_bit_cast(float, static_cast<uint32_t>(bf16) << 16); }

// Rounds to nearest even. NaN stays NaN.
TITAN_INLINE uint16_t bf16_of(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// 2^x for x in [0, 1] by minimax polynomials: the relative error is 7.5e-5 with degree 3 and 2.6e-6 with degree 4.
template <int kDegree, typename Float>
TITAN_INLINE Float power_of_two(Float x) {
  static_assert(kDegree == 3 || kDegree == 4);
  if constexpr (kDegree == 3) {
    const Float tail = x * 0.07802452147006989f + 0.22606715559959412f;
    return (tail * x + 0.6958335638046265f) * x + 0.9999251961708069f;
  } else {
    const Float tail = (x * 0.013534167781472206f + 0.052011460065841675f) * x + 0.2414427548646927f;
    return (tail * x + 0.6930038332939148f) * x + 1.0000026226043701f;
  }
}

template <typename T>
TITAN_INLINE T* row_of(const BasicHeads<T>& heads, int64_t row, int64_t token, int64_t head) {
  return heads.data + row * heads.batch + token * heads.token + head * heads.head;
}

// Hands out pieces of a thread's scratch memory, each on a separate cache line. Without memory it only counts.
class Arena {
 public:
  explicit Arena(char* memory) : memory_(memory) {}

  template <typename T>
  T* take(int64_t count) {
    char* const piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(piece);
  }
  size_t used() const { return static_cast<size_t>(used_); }

 private:
  char* const memory_;
  int64_t used_ = 0;
};

// Keys that a strip of queries sees: [begin, end) by any query, [all_begin, all_end) by all.
struct StripRange {
  int64_t begin = INT32_MAX, end = 0;
  int64_t all_begin = 0, all_end = INT32_MAX;

  TITAN_INLINE void add(int64_t query_begin, int64_t query_end) {
    if (query_begin >= query_end) {
      all_end = 0;
      return;
    }
    begin = least(begin, query_begin);
    end = most(end, query_end);
    all_begin = most(all_begin, query_begin);
    all_end = least(all_end, query_end);
  }
  TITAN_INLINE void add(const StripRange& other) {
    begin = least(begin, other.begin);
    end = most(end, other.end);
  }
  // Whether some query of the strip does not see all keys of [from, to).
  TITAN_INLINE bool masks(int64_t from, int64_t to) const { return from < all_begin || to > all_end; }
};

// Fills begin and end of `count` queries from `first`, in the given order (null: ascending). Queries past the last one
// see nothing. The caller's ranges are clipped to the keys that exist.
TITAN_INLINE StripRange load_ranges(const AttentionShape& shape, int64_t row, int64_t first, int count,
                                    const uint8_t* order, int32_t* begin, int32_t* end) {
  StripRange all;
  for (int i = 0; i < count; ++i) {
    const int64_t query = first + (order == nullptr ? i : order[i]);
    int64_t from = 0, to = 0;
    if (query < shape.queries) {
      const KeyRange range = shape.visible[row * shape.visible_stride + query];
      from = most(range.begin, 0);
      to = least(range.end, shape.keys);
      all.add(from, to);
    }
    begin[i] = static_cast<int32_t>(from);
    end[i] = static_cast<int32_t>(to);
  }
  return all;
}

struct Normalizer {
  float factor;  // Factor of the sum of values.
  float lse;
};

// Returns the normalizer for a query's largest score (as an exponent of 2) and the sum of 2^(score - largest). `sink`:
// logit of the sink, or null.
TITAN_INLINE Normalizer normalize(float largest, float sum, const float* sink) {
  if (sink == nullptr) {
    if (sum == 0) return {0, -kInfinity};
    return {1 / sum, (largest + __builtin_log2f(sum)) * kLn2};
  }
  if (sum == 0) return {0, *sink};
  const float sink_score = *sink * kLog2E;
  const float top = sink_score > largest ? sink_score : largest;
  const float own = __builtin_exp2f(largest - top);
  const float total = sum * own + __builtin_exp2f(sink_score - top);
  return {own / total, (top + __builtin_log2f(total)) * kLn2};
}

// Log of the denominator in powers of two, and delta, of a backward pass's queries. Queries past the last one, and
// those that see nothing, get numbers that make their probabilities zero.
template <int kSize>
struct RowStatistics {
  alignas(64) float lse[kSize];
  alignas(64) float delta[kSize];
};

TITAN_INLINE float dot(const uint16_t* a, const uint16_t* b, int64_t size) {
  typedef float Floats __attribute__((vector_size(32)));
  typedef uint32_t Ints __attribute__((vector_size(32)));
  typedef uint16_t Words __attribute__((vector_size(16), aligned(2), may_alias));
  const auto load = [](const uint16_t* from) __attribute__((always_inline)) {
    return (Floats)(__builtin_convertvector(*reinterpret_cast<const Words*>(from), Ints) << 16);
  };
  Floats sums = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) sums += load(a + i) * load(b + i);
  for (int j = 0; i < size; ++i, ++j) sums[j] += float_of(a[i]) * float_of(b[i]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// Fills the statistics of kSize queries from `first`, in the given order (null: ascending). Returns the sum over them
// of the sink's probability times delta, or 0 if grad_sinks is null.
template <int kSize>
TITAN_INLINE double load_statistics(const AttentionBackward& args, int64_t row, int64_t head, int64_t first,
                                    const uint8_t* order, RowStatistics<kSize>& out) {
  const AttentionShape& shape = args.shape;
  const int64_t offset = (row * shape.heads + head) * shape.queries;
  double sink_sum = 0;
  for (int i = 0; i < kSize; ++i) {
    const int64_t query = first + (order == nullptr ? i : order[i]);
    out.lse[i] = -kLowest;
    out.delta[i] = 0;
    if (query >= shape.queries) continue;
    const float lse = args.lse[offset + query];
    if (lse == -kInfinity) continue;
    out.lse[i] = lse * kLog2E;
    out.delta[i] = args.delta != nullptr
                       ? args.delta[offset + query]
                       : dot(row_of(args.grad_o, row, query, head), row_of(args.o, row, query, head), shape.v_size);
    if (args.grad_sinks != nullptr) {
      sink_sum += static_cast<double>(__builtin_exp2f(shape.sinks[head] * kLog2E - out.lse[i])) *
                  static_cast<double>(out.delta[i]);
    }
  }
  return sink_sum;
}

// Returns the bytes of scratch memory per thread, which Scratch lays out.
template <typename Scratch>
size_t bytes_of(const AttentionShape& shape) {
  Arena arena(nullptr);
  Scratch(shape, arena);
  return arena.used();
}

inline void nothing() {}

// Returns the description of a level from the body that its file provides.
template <typename Body>
constexpr AttentionLevel level_of(void (*enter)() = nothing, void (*leave)() = nothing) {
  return {.query_block = Body::kQueries,
          .forward_bytes = Body::forward_bytes,
          .backward_bytes = Body::backward_bytes,
          .enter = enter,
          .leave = leave,
          .forward = Body::forward,
          .backward = Body::backward};
}

}  // namespace
}  // namespace titan::kernels
