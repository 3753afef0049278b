#pragma once

#include "worker/rank/kernels/cpu/attention_common.h"

// Attention by fp32 multiply-adds, for levels without tiles. All products use one small kernel, C[m, n] += A[m, k] B[k,
// n], which broadcasts numbers of A and holds rows of B and C in vectors. Scores are stored transposed, one row per key
// and one column per query, so that maximum, sum and delta are plain vector operations.
//
// `Isa` provides kLanes, Float and Int (vectors of kLanes), kRows (rows of C in registers, times two vectors), all and
// numbers (the same value in all lanes), max(a, b) (b if either is NaN), exp2 (for numbers not far above 0) and
// any(mask).
namespace titan::kernels {
namespace {

template <typename Isa>
class FmaAttention {
  using Float = typename Isa::Float;
  using Int = typename Isa::Int;
  typedef Float LooseFloat __attribute__((aligned(4)));

  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kStrip = 2 * kLanes;  // Queries side by side in two vectors.
  static constexpr int kStrips = 4;          // Strips that share one conversion of keys and values to fp32.
  static constexpr int kKeys = 96;           // Keys per block.
  static constexpr int kLine = 16;           // Numbers per cache line.

 public:
  static constexpr int kQueries = kStrip * kStrips;

 private:
  // Rows are an odd number of cache lines apart. At a power of two they would all map to the same few sets of the
  // cache.
  static constexpr int64_t kRow = kQueries + kLine;
  static int64_t row_stride(int64_t size) { return (((size + kLine - 1) / kLine) | 1) * kLine; }

 public:
  static size_t forward_bytes(const AttentionShape& shape) { return bytes_of<ForwardScratch>(shape); }
  static size_t backward_bytes(const AttentionShape& shape) { return bytes_of<BackwardScratch>(shape); }

  static void forward(const AttentionForward& args, const AttentionPart& part, char* memory) {
    Arena arena(memory);
    const ForwardScratch scratch(args.shape, arena);
    const int64_t group = args.shape.heads / args.shape.kv_heads;
    for (int64_t head = part.kv_head * group; head < (part.kv_head + 1) * group; ++head) {
      for (int64_t first = part.begin; first < part.end; first += kQueries) {
        forward_block(args, part.row, head, part.kv_head, first, scratch);
      }
    }
  }

  static void backward(const AttentionBackward& args, const AttentionPart& part, double* sink_sums, char* memory) {
    const AttentionShape& shape = args.shape;
    Arena arena(memory);
    const BackwardScratch scratch(shape, arena);
    fill_zero(scratch.grad_k, shape.keys * scratch.size);
    fill_zero(scratch.grad_v, shape.keys * scratch.v_size);
    const int64_t group = shape.heads / shape.kv_heads;
    for (int64_t head = part.kv_head * group; head < (part.kv_head + 1) * group; ++head) {
      double sink_sum = 0;
      for (int64_t first = part.begin; first < part.end; first += kQueries) {
        sink_sum += backward_block(args, part.row, head, part.kv_head, first, scratch);
      }
      if (sink_sums != nullptr) sink_sums[part.row * shape.heads + head] = sink_sum;
    }
    for (int64_t key = 0; key < shape.keys; ++key) {
      store_row(scratch.grad_k + key * scratch.size, shape.scale, shape.size,
                row_of(args.grad_k, part.row, key, part.kv_head));
      store_row(scratch.grad_v + key * scratch.v_size, 1, shape.v_size,
                row_of(args.grad_v, part.row, key, part.kv_head));
    }
  }

 private:
  // Ranges of keys that a block's queries see.
  struct Block {
    alignas(64) int32_t begin[kQueries], end[kQueries];
    StripRange strips[kStrips];
    StripRange all;

    Block(const AttentionShape& shape, int64_t row, int64_t first) {
      for (int s = 0; s < kStrips; ++s) {
        strips[s] = load_ranges(shape, row, first + s * kStrip, kStrip, nullptr, begin + s * kStrip, end + s * kStrip);
        all.add(strips[s]);
      }
    }
  };

  struct ForwardScratch {
    ForwardScratch(const AttentionShape& shape, Arena& arena)
        : size(row_stride(shape.size)), v_size(row_stride(shape.v_size)) {
      keys = arena.take<float>(kKeys * size);
      values = arena.take<float>(kKeys * v_size);
      queries = arena.take<float>(shape.size * kQueries);
      out = arena.take<float>(shape.v_size * kQueries);
      scores = arena.take<float>(kKeys * kStrip);
    }
    int64_t size, v_size;  // Row strides in memory.
    float* keys;           // [kKeys, size]
    float* values;         // [kKeys, v_size]
    float* queries;        // Per strip [size, kStrip], times scale * log2(e).
    float* out;            // Per strip [v_size, kStrip].
    float* scores;         // [kKeys, kStrip]
  };

  struct BackwardScratch {
    BackwardScratch(const AttentionShape& shape, Arena& arena)
        : size(row_stride(shape.size)), v_size(row_stride(shape.v_size)) {
      keys = arena.take<float>(kKeys * size);
      values = arena.take<float>(kKeys * v_size);
      queries = arena.take<float>(shape.size * kQueries);
      grad_o = arena.take<float>(shape.v_size * kQueries);
      query_rows = arena.take<float>(kQueries * size);
      grad_o_rows = arena.take<float>(kQueries * v_size);
      grad_q = arena.take<float>(shape.size * kQueries);
      scores = arena.take<float>(kKeys * kRow);
      grad_scores = arena.take<float>(kKeys * kRow);
      grad_k = arena.take<float>(shape.keys * size);
      grad_v = arena.take<float>(shape.keys * v_size);
    }
    int64_t size, v_size;             // Row strides in memory.
    float *keys, *values;             // [kKeys, size], [kKeys, v_size]
    float *queries, *grad_o;          // Per strip [shape.size, kStrip] (times scale * log2(e)), [shape.v_size, kStrip].
    float *query_rows, *grad_o_rows;  // [kQueries, size], [kQueries, v_size]
    float* grad_q;                    // Per strip [shape.size, kStrip].
    float *scores, *grad_scores;      // [kKeys, kRow]: probabilities and gradients of scores.
    float *grad_k, *grad_v;           // [shape.keys, size], [shape.keys, v_size]
  };

  struct Softmax {
    Float largest[2], sum[2];
  };

  static void forward_block(const AttentionForward& args, int64_t row, int64_t head, int64_t kv_head, int64_t first,
                            const ForwardScratch& scratch) {
    const AttentionShape& shape = args.shape;
    const int strips = static_cast<int>(least(kStrips, (shape.queries - first + kStrip - 1) / kStrip));
    const Block block(shape, row, first);
    Softmax softmax[kStrips];
    for (int s = 0; s < strips; ++s) {
      load_columns(args.q, row, first + s * kStrip, head, shape.queries, shape.size, shape.scale * kLog2E,
                   scratch.queries + s * kStrip * shape.size);
      for (int i = 0; i < 2; ++i) softmax[s].largest[i] = Isa::all(kLowest), softmax[s].sum[i] = Isa::all(0);
    }
    fill_zero(scratch.out, shape.v_size * kStrip * strips);
    for (int64_t base = block.all.begin / kKeys * kKeys; base < block.all.end; base += kKeys) {
      const int64_t end = least(base + kKeys, block.all.end);
      load_rows(args.k, row, base, end, kv_head, shape.size, scratch.size, scratch.keys);
      load_rows(args.v, row, base, end, kv_head, shape.v_size, scratch.v_size, scratch.values);
      for (int s = 0; s < strips; ++s) {
        const int64_t from = most(base, block.strips[s].begin), to = least(end, block.strips[s].end);
        if (from >= to) continue;
        float* const out = scratch.out + s * kStrip * shape.v_size;
        product<false, false>(to - from, kStrip, shape.size, scratch.keys + (from - base) * scratch.size, scratch.size,
                              scratch.queries + s * kStrip * shape.size, kStrip, scratch.scores, kStrip);
        const int32_t *begins = block.begin + s * kStrip, *ends = block.end + s * kStrip;
        if (block.strips[s].masks(from, to)) {
          add_scores<true>(scratch.scores, from, to, begins, ends, softmax[s], out, shape.v_size);
        } else {
          add_scores<false>(scratch.scores, from, to, begins, ends, softmax[s], out, shape.v_size);
        }
        product<true, true>(shape.v_size, kStrip, to - from, scratch.values + (from - base) * scratch.v_size,
                            scratch.v_size, scratch.scores, kStrip, out, kStrip);
      }
    }
    for (int s = 0; s < strips; ++s) {
      store_out(args, row, head, first + s * kStrip, softmax[s], scratch.out + s * kStrip * shape.v_size);
    }
  }

  // Adds the scores of the keys [from, to) to the sums and rescales earlier sums to the new maximum. Replaces the
  // scores by probabilities that are not yet divided by their sum.
  template <bool kMasked>
  static void add_scores(float* scores, int64_t from, int64_t to, const int32_t* begins, const int32_t* ends,
                         Softmax& softmax, float* out, int64_t v_size) {
    const Float lowest = Isa::all(kLowest);
    Float largest[4] = {softmax.largest[0], softmax.largest[1], lowest, lowest};
    Int begin[2], end[2];
    for (int i = 0; i < 2; ++i) begin[i] = load<Int>(begins + i * kLanes), end[i] = load<Int>(ends + i * kLanes);
    const auto seen = [&](int64_t key, int i) {
      const Int number = Isa::numbers(static_cast<int32_t>(key));
      return (begin[i] <= number) & (number < end[i]);
    };
    for (int64_t key = from; key < to; ++key) {
      float* const row = scores + (key - from) * kStrip;
      const int other = 2 * (key & 1);
      for (int i = 0; i < 2; ++i) {
        Float score = load<Float>(row + i * kLanes);
        if constexpr (kMasked) score = seen(key, i) ? score : lowest;
        if (other == 0) {
          largest[i] = Isa::max(score, largest[i]);
        } else {
          largest[2 + i] = Isa::max(score, largest[2 + i]);
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      largest[i] = Isa::max(largest[i], largest[2 + i]);
      const Int grown = largest[i] != softmax.largest[i];
      if (!Isa::any(grown)) continue;
      const Float scale = grown ? Isa::exp2(softmax.largest[i] - largest[i]) : Isa::all(1);
      softmax.largest[i] = largest[i];
      softmax.sum[i] *= scale;
      for (int64_t j = 0; j < v_size; ++j) {
        float* const at = out + j * kStrip + i * kLanes;
        store(at, load<Float>(at) * scale);
      }
    }
    Float sum[2] = {Isa::all(0), Isa::all(0)};
    for (int64_t key = from; key < to; ++key) {
      for (int i = 0; i < 2; ++i) {
        float* const at = scores + (key - from) * kStrip + i * kLanes;
        Float weight = Isa::exp2(load<Float>(at) - largest[i]);
        if constexpr (kMasked) weight = seen(key, i) ? weight : Isa::all(0);
        sum[i] += weight;
        store(at, weight);
      }
    }
    for (int i = 0; i < 2; ++i) softmax.sum[i] += sum[i];
  }

  static void store_out(const AttentionForward& args, int64_t row, int64_t head, int64_t first, const Softmax& softmax,
                        const float* out) {
    const AttentionShape& shape = args.shape;
    const int64_t count = least(kStrip, shape.queries - first);
    for (int64_t i = 0; i < count; ++i) {
      const Normalizer by = normalize(softmax.largest[i / kLanes][i % kLanes], softmax.sum[i / kLanes][i % kLanes],
                                      shape.sinks == nullptr ? nullptr : shape.sinks + head);
      args.lse[(row * shape.heads + head) * shape.queries + first + i] = by.lse;
      uint16_t* const to = row_of(args.o, row, first + i, head);
      for (int64_t j = 0; j < shape.v_size; ++j) to[j] = bf16_of(out[j * kStrip + i] * by.factor);
    }
  }

  static double backward_block(const AttentionBackward& args, int64_t row, int64_t head, int64_t kv_head, int64_t first,
                               const BackwardScratch& scratch) {
    const AttentionShape& shape = args.shape;
    const int strips = static_cast<int>(least(kStrips, (shape.queries - first + kStrip - 1) / kStrip));
    const Block block(shape, row, first);
    RowStatistics<kQueries> statistics;
    const double sink_sum = load_statistics(args, row, head, first, nullptr, statistics);
    const int64_t last = least(first + kQueries, shape.queries);
    load_rows(args.q, row, first, last, head, shape.size, scratch.size, scratch.query_rows);
    load_rows(args.grad_o, row, first, last, head, shape.v_size, scratch.v_size, scratch.grad_o_rows);
    fill_zero(scratch.query_rows + (last - first) * scratch.size, (first + kQueries - last) * scratch.size);
    fill_zero(scratch.grad_o_rows + (last - first) * scratch.v_size, (first + kQueries - last) * scratch.v_size);
    for (int s = 0; s < strips; ++s) {
      load_columns(args.q, row, first + s * kStrip, head, shape.queries, shape.size, shape.scale * kLog2E,
                   scratch.queries + s * kStrip * shape.size);
      load_columns(args.grad_o, row, first + s * kStrip, head, shape.queries, shape.v_size, 1,
                   scratch.grad_o + s * kStrip * shape.v_size);
    }
    fill_zero(scratch.grad_q, shape.size * kStrip * strips);
    for (int64_t base = block.all.begin / kKeys * kKeys; base < block.all.end; base += kKeys) {
      const int64_t end = least(base + kKeys, block.all.end);
      load_rows(args.k, row, base, end, kv_head, shape.size, scratch.size, scratch.keys);
      load_rows(args.v, row, base, end, kv_head, shape.v_size, scratch.v_size, scratch.values);
      backward_keys(shape, block, strips, statistics, most(base, block.all.begin), end, base, scratch);
    }
    for (int64_t i = first; i < last; ++i) {
      const float* const from = scratch.grad_q + (i - first) / kStrip * kStrip * shape.size + (i - first) % kStrip;
      uint16_t* const to = row_of(args.grad_q, row, i, head);
      for (int64_t j = 0; j < shape.size; ++j) to[j] = bf16_of(from[j * kStrip] * shape.scale);
    }
    return sink_sum;
  }

  // Computes the keys [from, to) of the block at `base`.
  static void backward_keys(const AttentionShape& shape, const Block& block, int strips,
                            const RowStatistics<kQueries>& statistics, int64_t from, int64_t to, int64_t base,
                            const BackwardScratch& scratch) {
    int first_strip = kStrips, last_strip = 0;
    StripRange seen;
    for (int s = 0; s < strips; ++s) {
      if (most(from, block.strips[s].begin) >= least(to, block.strips[s].end)) continue;
      first_strip = s < first_strip ? s : first_strip;
      last_strip = s + 1;
      seen.add(block.strips[s]);
    }
    from = most(from, seen.begin), to = least(to, seen.end);
    for (int s = first_strip; s < last_strip; ++s) {
      const int64_t strip_from = most(from, block.strips[s].begin);
      const int64_t strip_to = most(strip_from, least(to, block.strips[s].end));
      float* const scores = scratch.scores + s * kStrip;
      float* const grad_scores = scratch.grad_scores + s * kStrip;
      clear_columns(scores, strip_from - from, strip_to - from, to - from);
      clear_columns(grad_scores, strip_from - from, strip_to - from, to - from);
      if (strip_from >= strip_to) continue;
      const float* const keys = scratch.keys + (strip_from - base) * scratch.size;
      const float* const values = scratch.values + (strip_from - base) * scratch.v_size;
      float* const own_scores = scores + (strip_from - from) * kRow;
      float* const own_grads = grad_scores + (strip_from - from) * kRow;
      product<false, false>(strip_to - strip_from, kStrip, shape.size, keys, scratch.size,
                            scratch.queries + s * kStrip * shape.size, kStrip, own_scores, kRow);
      product<false, false>(strip_to - strip_from, kStrip, shape.v_size, values, scratch.v_size,
                            scratch.grad_o + s * kStrip * shape.v_size, kStrip, own_grads, kRow);
      const int32_t *begins = block.begin + s * kStrip, *ends = block.end + s * kStrip;
      const float *lse = statistics.lse + s * kStrip, *delta = statistics.delta + s * kStrip;
      if (block.strips[s].masks(strip_from, strip_to)) {
        score_gradients<true>(own_scores, own_grads, strip_from, strip_to, begins, ends, lse, delta);
      } else {
        score_gradients<false>(own_scores, own_grads, strip_from, strip_to, begins, ends, lse, delta);
      }
      product<true, true>(shape.size, kStrip, strip_to - strip_from, keys, scratch.size, own_grads, kRow,
                          scratch.grad_q + s * kStrip * shape.size, kStrip);
    }
    if (first_strip >= last_strip) return;
    const int64_t query = first_strip * kStrip, queries = (last_strip - first_strip) * kStrip;
    product<false, true>(to - from, round_up(shape.v_size, kLanes), queries, scratch.scores + query, kRow,
                         scratch.grad_o_rows + query * scratch.v_size, scratch.v_size,
                         scratch.grad_v + from * scratch.v_size, scratch.v_size);
    product<false, true>(to - from, round_up(shape.size, kLanes), queries, scratch.grad_scores + query, kRow,
                         scratch.query_rows + query * scratch.size, scratch.size, scratch.grad_k + from * scratch.size,
                         scratch.size);
  }

  // Turns scores and gradients of probabilities into probabilities and gradients of scores.
  template <bool kMasked>
  static void score_gradients(float* scores, float* grads, int64_t from, int64_t to, const int32_t* begins,
                              const int32_t* ends, const float* lse, const float* delta) {
    for (int64_t key = from; key < to; ++key) {
      const Int number = Isa::numbers(static_cast<int32_t>(key));
      for (int i = 0; i < kStrip; i += kLanes) {
        float* const score = scores + (key - from) * kRow + i;
        float* const grad = grads + (key - from) * kRow + i;
        Float weight = Isa::exp2(load<Float>(score) - load<Float>(lse + i));
        Float change = weight * (load<Float>(grad) - load<Float>(delta + i));
        if constexpr (kMasked) {
          const Int seen = (load<Int>(begins + i) <= number) & (number < load<Int>(ends + i));
          weight = seen ? weight : Isa::all(0);
          change = seen ? change : Isa::all(0);
        }
        store(score, weight);
        store(grad, change);
      }
    }
  }

  // Zeros a strip's columns in the rows [0, from) and [to, end).
  static void clear_columns(float* columns, int64_t from, int64_t to, int64_t end) {
    for (int64_t i = 0; i < end; ++i) {
      if (i == from) i = to;
      if (i >= end) break;
      for (int j = 0; j < kStrip; j += kLanes) store(columns + i * kRow + j, Isa::all(0));
    }
  }

  // C[m, n] (+)= A[m, k] B[k, n], where n is a multiple of kLanes. lda is the distance of A's rows or, if transposed,
  // of its columns.
  template <bool kTransposed, bool kAdd>
  static void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                      float* c, int64_t ldc) {
    int64_t column = 0;
    for (; column + 2 * kLanes <= n; column += 2 * kLanes) {
      panel<kTransposed, kAdd, 2>(m, k, a, lda, b + column, ldb, c + column, ldc);
    }
    if (column < n) panel<kTransposed, kAdd, 1>(m, k, a, lda, b + column, ldb, c + column, ldc);
  }

  template <bool kTransposed, bool kAdd, int kVectors>
  static void panel(int64_t m, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                    int64_t ldc) {
    const int64_t a_row = kTransposed ? 1 : lda;
    int64_t i = 0;
    for (; i + Isa::kRows <= m; i += Isa::kRows) {
      rows<kTransposed, kAdd, Isa::kRows, kVectors>(k, a + i * a_row, lda, b, ldb, c + i * ldc, ldc);
    }
    for (; i + 4 <= m; i += 4) rows<kTransposed, kAdd, 4, kVectors>(k, a + i * a_row, lda, b, ldb, c + i * ldc, ldc);
    for (; i < m; ++i) rows<kTransposed, kAdd, 1, kVectors>(k, a + i * a_row, lda, b, ldb, c + i * ldc, ldc);
  }

  template <bool kTransposed, bool kAdd, int kCount, int kVectors>
  static __attribute__((noinline)) void rows(int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                                             float* c, int64_t ldc) {
    Float sum[kCount][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) sum[i][j] = kAdd ? load<Float>(c + i * ldc + j * kLanes) : Isa::all(0);
    }
    for (int64_t p = 0; p < k; ++p) {
      Float row[kVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) row[j] = load<Float>(b + p * ldb + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i) {
        const Float factor = Isa::all(kTransposed ? a[p * lda + i] : a[i * lda + p]);
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) sum[i][j] += factor * row[j];
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) store(c + i * ldc + j * kLanes, sum[i][j]);
    }
  }

  template <typename Vector, typename Number>
  static TITAN_INLINE Vector load(const Number* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
  static TITAN_INLINE void store(float* to, Float value) { *reinterpret_cast<Float*>(to) = value; }

  static void fill_zero(float* to, int64_t count) { __builtin_memset(to, 0, count * sizeof(float)); }

  // Loads tokens [begin, end) of a head as fp32 rows `stride` apart, padded with zeros.
  static void load_rows(const Heads& heads, int64_t row, int64_t begin, int64_t end, int64_t head, int64_t size,
                        int64_t stride, float* out) {
    for (int64_t token = begin; token < end; ++token, out += stride) {
      const uint16_t* const from = row_of(heads, row, token, head);
      for (int64_t j = 0; j < size; ++j) out[j] = float_of(from[j]);
      for (int64_t j = size; j < stride; ++j) out[j] = 0;
    }
  }

  // Loads a strip of tokens as columns: out[size, kStrip], with zeros past the last token.
  static void load_columns(const Heads& heads, int64_t row, int64_t first, int64_t head, int64_t tokens, int64_t size,
                           float factor, float* out) {
    for (int64_t i = 0; i < kStrip; ++i) {
      const bool present = first + i < tokens;
      const uint16_t* const from = present ? row_of(heads, row, first + i, head) : nullptr;
      for (int64_t j = 0; j < size; ++j) out[j * kStrip + i] = present ? float_of(from[j]) * factor : 0;
    }
  }

  static void store_row(const float* from, float factor, int64_t size, uint16_t* to) {
    for (int64_t j = 0; j < size; ++j) to[j] = bf16_of(from[j] * factor);
  }
};

}  // namespace
}  // namespace titan::kernels
