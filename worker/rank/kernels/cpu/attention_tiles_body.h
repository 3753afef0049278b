#pragma once

#include "worker/rank/kernels/cpu/attention_common.h"

// Attention by products of bf16 tiles (AMX). A tile is 16 rows of 64 bytes, stored as one contiguous KiB:
//   as A  [16 rows of C][32 k]
//   as B  [16 pairs of k][16 columns of C][2]
//   as C  16 x 16 fp32, inside a larger matrix.
// Scores are stored transposed, one row per key and one column per query, so that maximum, sum and delta are plain
// vector operations and probabilities become operands of the next products without a transposition:
//   forward   S^T = K Q^T   O^T += V^T P^T
//   backward  S^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dS^T Q   dQ^T += K^T dS^T
//
// `Isa` provides vectors of 16 fp32 and of 32 bf16, and the operations on them and on the eight tiles
// (attention_amx.cc).
namespace titan::kernels {
namespace {

template <typename Isa>
class TileAttention {
  using Float = typename Isa::Float;  // 16 fp32.
  using Int = typename Isa::Int;
  using Words = typename Isa::Words;  // 32 bf16.

  static constexpr int kTile = 512;  // In bf16 numbers.
  static constexpr int kStrip = 32;  // Queries in two tiles side by side.
  static constexpr int kStrips = 4;
  // Keys in two tiles. A strip skips a block of this many keys if it sees none of them.
  static constexpr int kSub = 32;
  static constexpr int kSubs = 4;
  static constexpr int kKeys = kSub * kSubs;

 public:
  static constexpr int kQueries = kStrip * kStrips;

  static size_t forward_bytes(const AttentionShape& shape) { return bytes_of<ForwardScratch>(shape); }
  static size_t backward_bytes(const AttentionShape& shape) { return bytes_of<BackwardScratch>(shape); }

  static void forward(const AttentionForward& args, const AttentionPart& part, char* memory) {
    const AttentionShape& shape = args.shape;
    Arena arena(memory);
    const ForwardScratch scratch(shape, arena);
    for (int64_t key = 0; key < shape.keys; key += kSub) {
      const int64_t sub = key / kSub;
      load_tokens(args.k, part.row, key, part.kv_head, shape.keys, shape.size, nullptr, scratch.staging);
      pack_rows(scratch.staging, scratch.k_steps, scratch.keys + sub * 2 * scratch.k_steps * kTile);
      load_tokens(args.v, part.row, key, part.kv_head, shape.keys, shape.v_size, nullptr, scratch.staging);
      pack_transposed(scratch.staging, scratch.v_tiles, scratch.values + sub * scratch.v_tiles * kTile);
    }
    const int64_t group = shape.heads / shape.kv_heads;
    for (int64_t head = part.kv_head * group; head < (part.kv_head + 1) * group; ++head) {
      for (int64_t first = part.begin; first < part.end; first += kQueries) {
        forward_block(args, part.row, head, first, scratch);
      }
    }
  }

  static void backward(const AttentionBackward& args, const AttentionPart& part, double* sink_sums, char* memory) {
    const AttentionShape& shape = args.shape;
    Arena arena(memory);
    const BackwardScratch scratch(shape, arena);
    for (int64_t key = 0; key < shape.keys; key += kSub) {
      const int64_t sub = key / kSub;
      load_tokens(args.k, part.row, key, part.kv_head, shape.keys, shape.size, nullptr, scratch.staging);
      pack_rows(scratch.staging, scratch.k_steps, scratch.keys + sub * 2 * scratch.k_steps * kTile);
      pack_transposed(scratch.staging, scratch.tiles, scratch.keys_transposed + sub * scratch.tiles * kTile);
      load_tokens(args.v, part.row, key, part.kv_head, shape.keys, shape.v_size, nullptr, scratch.staging);
      pack_rows(scratch.staging, scratch.v_steps, scratch.values + sub * 2 * scratch.v_steps * kTile);
    }
    const int64_t keys = round_up(shape.keys, kSub);
    fill_zero(scratch.grad_k, keys * scratch.tiles * 16);
    fill_zero(scratch.grad_v, keys * scratch.v_tiles * 16);
    const int64_t group = shape.heads / shape.kv_heads;
    for (int64_t head = part.kv_head * group; head < (part.kv_head + 1) * group; ++head) {
      double sink_sum = 0;
      for (int64_t first = part.begin; first < part.end; first += kQueries) {
        sink_sum += backward_block(args, part.row, head, first, scratch);
      }
      if (sink_sums != nullptr) sink_sums[part.row * shape.heads + head] = sink_sum;
    }
    for (int64_t key = 0; key < shape.keys; ++key) {
      store_row(scratch.grad_k + key * scratch.tiles * 16, scratch.tiles, shape.scale, shape.size,
                row_of(args.grad_k, part.row, key, part.kv_head));
      store_row(scratch.grad_v + key * scratch.v_tiles * 16, scratch.v_tiles, 1, shape.v_size,
                row_of(args.grad_v, part.row, key, part.kv_head));
    }
  }

 private:
  // Order of a strip's queries. Unpacking pairs the words of two rows of 32, within each 16 bytes. In this order the
  // pairs are queries 0 to 15 and 16 to 31, and products of the pairs are in the order of the queries.
  static constexpr uint8_t kUnpacked[kStrip] = {0, 1, 2,  3,  16, 17, 18, 19, 4,  5,  6,  7,  20, 21, 22, 23,
                                                8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};

  // Positions of queries 0 to 15 and 16 to 31 in that order.
  static constexpr Int kLowQueries = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
  static constexpr Int kHighQueries = kLowQueries + 4;

  // Ranges of keys that a block's queries see, in the order of their strips.
  struct Block {
    alignas(64) int32_t begin[kQueries], end[kQueries];
    StripRange strips[kStrips];
    StripRange all;

    Block(const AttentionShape& shape, int64_t row, int64_t first, const uint8_t* order) {
      for (int s = 0; s < kStrips; ++s) {
        strips[s] = load_ranges(shape, row, first + s * kStrip, kStrip, order, begin + s * kStrip, end + s * kStrip);
        all.add(strips[s]);
      }
    }
  };

  // Subs of the block of keys at `base` that a strip sees.
  struct Subs {
    int begin = 0, end = 0;

    Subs(const StripRange& strip, int64_t base) {
      const int64_t from = most(strip.begin, base), to = least(strip.end, base + kKeys);
      if (from >= to) return;
      begin = static_cast<int>((from - base) / kSub);
      end = static_cast<int>((to - base + kSub - 1) / kSub);
    }
    bool have(int sub) const { return begin <= sub && sub < end; }
  };

  struct ForwardScratch {
    ForwardScratch(const AttentionShape& shape, Arena& arena)
        : k_steps(round_up(shape.size, 32) / 32), v_tiles(round_up(shape.v_size, 16) / 16) {
      const int64_t subs = round_up(shape.keys, kSub) / kSub;
      staging = arena.take<uint16_t>(32 * kStagingRow);
      keys = arena.take<uint16_t>(subs * 2 * k_steps * kTile);
      values = arena.take<uint16_t>(subs * v_tiles * kTile);
      queries = arena.take<uint16_t>(kStrips * 2 * k_steps * kTile);
      out = arena.take<float>(kStrips * v_tiles * 16 * kStrip);
      scores = arena.take<float>(kKeys * kStrip);
      weights = arena.take<uint16_t>(kSubs * 2 * kTile);
    }
    int64_t k_steps, v_tiles;  // Tiles along a head, of 32 numbers for k and 16 for v.
    uint16_t* staging;         // [32 tokens][kStagingRow]
    uint16_t* keys;            // A: [subs][2][k_steps]
    uint16_t* values;          // A of V^T: [subs][v_tiles]
    uint16_t* queries;         // B of Q^T: [kStrips][k_steps][2]
    float* out;                // O^T: [kStrips][v_tiles * 16][kStrip]
    float* scores;             // [kKeys][kStrip]
    uint16_t* weights;         // B of P^T: [kSubs][2]
  };

  struct BackwardScratch {
    BackwardScratch(const AttentionShape& shape, Arena& arena)
        : k_steps(round_up(shape.size, 32) / 32),
          v_steps(round_up(shape.v_size, 32) / 32),
          tiles(round_up(shape.size, 16) / 16),
          v_tiles(round_up(shape.v_size, 16) / 16) {
      const int64_t subs = round_up(shape.keys, kSub) / kSub;
      staging = arena.take<uint16_t>(32 * kStagingRow);
      keys = arena.take<uint16_t>(subs * 2 * k_steps * kTile);
      keys_transposed = arena.take<uint16_t>(subs * tiles * kTile);
      values = arena.take<uint16_t>(subs * 2 * v_steps * kTile);
      queries = arena.take<uint16_t>(kStrips * 2 * k_steps * kTile);
      query_pairs = arena.take<uint16_t>(kStrips * tiles * kTile);
      grad_o = arena.take<uint16_t>(kStrips * 2 * v_steps * kTile);
      grad_o_pairs = arena.take<uint16_t>(kStrips * v_tiles * kTile);
      scores = arena.take<float>(kSub * kStrip);
      grad_weights = arena.take<float>(kSub * kStrip);
      weights = arena.take<uint16_t>(kSubs * 2 * kStrips * kTile);
      grad_scores = arena.take<uint16_t>(kSubs * 2 * kStrips * kTile);
      grad_score_pairs = arena.take<uint16_t>(kSubs * kStrips * 2 * kTile);
      grad_q = arena.take<float>(tiles * 16 * kQueries);
      grad_k = arena.take<float>(subs * kSub * tiles * 16);
      grad_v = arena.take<float>(subs * kSub * v_tiles * 16);
    }
    int64_t k_steps, v_steps, tiles, v_tiles;  // Tiles along a head of q and of v: by 32 and by 16 numbers.
    uint16_t* staging;                         // [32 tokens][kStagingRow]
    uint16_t* keys;                            // A: [subs][2][k_steps]
    uint16_t* keys_transposed;                 // A of K^T: [subs][tiles]
    uint16_t* values;                          // A: [subs][2][v_steps]
    uint16_t* queries;                         // B of Q^T: [kStrips][k_steps][2]
    uint16_t* query_pairs;                     // B of Q: [kStrips][tiles]
    uint16_t* grad_o;                          // B of dO^T: [kStrips][v_steps][2]
    uint16_t* grad_o_pairs;                    // B of dO: [kStrips][v_tiles]
    float *scores, *grad_weights;              // S^T and dP^T of one sub: [kSub][kStrip]
    uint16_t* weights;                         // A of P^T: [kSubs][2][kStrips]
    uint16_t* grad_scores;                     // A of dS^T: [kSubs][2][kStrips]
    uint16_t* grad_score_pairs;                // B of dS^T: [kSubs][kStrips][2]
    float* grad_q;                             // dQ^T: [tiles * 16][kQueries]
    float *grad_k, *grad_v;                    // [keys][tiles * 16], [keys][v_tiles * 16]
  };

  struct Softmax {
    Float largest[2], sum[2];
  };

  static void forward_block(const AttentionForward& args, int64_t row, int64_t head, int64_t first,
                            const ForwardScratch& scratch) {
    const AttentionShape& shape = args.shape;
    const int strips = static_cast<int>(least(kStrips, (shape.queries - first + kStrip - 1) / kStrip));
    const Block block(shape, row, first, kUnpacked);
    const int64_t strip_out = scratch.v_tiles * 16 * kStrip, strip_queries = scratch.k_steps * 2 * kTile;
    Softmax softmax[kStrips];
    for (int s = 0; s < strips; ++s) {
      load_tokens(args.q, row, first + s * kStrip, head, shape.queries, shape.size, kUnpacked, scratch.staging);
      pack_columns(scratch.staging, scratch.k_steps, scratch.queries + s * strip_queries);
      for (int i = 0; i < 2; ++i) softmax[s].largest[i] = Isa::all(kLowest), softmax[s].sum[i] = Isa::all(0);
    }
    fill_zero(scratch.out, strips * strip_out);
    for (int64_t base = block.all.begin / kKeys * kKeys; base < block.all.end; base += kKeys) {
      for (int s = 0; s < strips; ++s) {
        const Subs subs(block.strips[s], base);
        if (subs.begin >= subs.end) continue;
        float* const out = scratch.out + s * strip_out;
        float* const scores = scratch.scores + subs.begin * kSub * kStrip;
        strip_products<From::kZero>(subs.end - subs.begin, scratch.k_steps,
                                    scratch.keys + (base / kSub + subs.begin) * 2 * scratch.k_steps * kTile,
                                    scratch.queries + s * strip_queries, scores);
        const int64_t from = base + subs.begin * kSub, to = base + subs.end * kSub;
        const int32_t *begins = block.begin + s * kStrip, *ends = block.end + s * kStrip;
        uint16_t* const weights = scratch.weights + subs.begin * 2 * kTile;
        const float scale = shape.scale * kLog2E;
        if (block.strips[s].masks(from, to)) {
          add_scores<true>(scores, from, to, begins, ends, scale, softmax[s], weights, out, scratch.v_tiles * 16);
        } else {
          add_scores<false>(scores, from, to, begins, ends, scale, softmax[s], weights, out, scratch.v_tiles * 16);
        }
        const uint16_t* const values = scratch.values + (base / kSub + subs.begin) * scratch.v_tiles * kTile;
        add_products<2>(scratch.v_tiles, subs.end - subs.begin, values, scratch.v_tiles * kTile, kTile, weights,
                        2 * kTile, kTile, out, kStrip, 16 * kStrip);
      }
    }
    for (int s = 0; s < strips; ++s) {
      store_out(args, row, head, first + s * kStrip, softmax[s], scratch.out + s * strip_out, scratch.v_tiles);
    }
  }

  // Adds the scores of the keys [from, to) to the sums and rescales earlier sums to the new maximum. Writes
  // probabilities, not yet divided by their sum, as operands B.
  template <bool kMasked>
  static void add_scores(float* scores, int64_t from, int64_t to, const int32_t* begins, const int32_t* ends,
                         float scale, Softmax& softmax, uint16_t* weights, float* out, int64_t v_size) {
    const Float lowest = Isa::all(kLowest), zero = Isa::all(0);
    Int begin[2], end[2];
    for (int i = 0; i < 2; ++i) begin[i] = load<Int>(begins + i * 16), end[i] = load<Int>(ends + i * 16);
    const auto seen = [&](int64_t key, int i) __attribute__((always_inline)) {
      const Int number = Isa::numbers(static_cast<int32_t>(key));
      return (begin[i] <= number) & (number < end[i]);
    };
    Float even[2] = {lowest, lowest}, odd[2] = {lowest, lowest};
    for (int64_t key = from; key < to; key += 2) {
      float* const rows = scores + (key - from) * kStrip;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        Float a = load<Float>(rows + i * 16), b = load<Float>(rows + kStrip + i * 16);
        if constexpr (kMasked) {
          a = seen(key, i) ? a : lowest;
          b = seen(key + 1, i) ? b : lowest;
        }
        even[i] = Isa::max(a, even[i]);
        odd[i] = Isa::max(b, odd[i]);
      }
    }
    Float offset[2], change[2];
    Int grown[2];
    for (int i = 0; i < 2; ++i) {
      offset[i] = Isa::max(Isa::max(even[i], odd[i]) * scale, softmax.largest[i]);  // In powers of two, as all below.
      grown[i] = offset[i] != softmax.largest[i];
      change[i] = grown[i] ? Isa::exp2(softmax.largest[i] - offset[i]) : Isa::all(1);
      softmax.largest[i] = offset[i];
      softmax.sum[i] *= change[i];
    }
    if (Isa::any(grown[0] | grown[1])) {
      const Float low = __builtin_shuffle(change[0], change[1], kLowQueries);
      const Float high = __builtin_shuffle(change[0], change[1], kHighQueries);
      for (int64_t j = 0; j < v_size; ++j, out += kStrip) {
        store(out, load<Float>(out) * low);
        store(out + 16, load<Float>(out + 16) * high);
      }
    }
    Float even_sum[2] = {zero, zero}, odd_sum[2] = {zero, zero};
    for (int64_t key = from; key < to; key += 2) {
      const float* const rows = scores + (key - from) * kStrip;
      Float a[2], b[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        a[i] = Isa::exp2(load<Float>(rows + i * 16) * scale - offset[i]);
        b[i] = Isa::exp2(load<Float>(rows + kStrip + i * 16) * scale - offset[i]);
        if constexpr (kMasked) {
          a[i] = seen(key, i) ? a[i] : zero;
          b[i] = seen(key + 1, i) ? b[i] : zero;
        }
        even_sum[i] += a[i];
        odd_sum[i] += b[i];
      }
      const Words even_row = Isa::narrow(a[0], a[1]), odd_row = Isa::narrow(b[0], b[1]);
      // This is pair (key - from) / 2 % 16 of the sub's two tiles.
      uint16_t* const pair = weights + (key - from) / kSub * 2 * kTile + (key - from) % kSub / 2 * 32;
      store(pair, Isa::unpack_low(even_row, odd_row));
      store(pair + kTile, Isa::unpack_high(even_row, odd_row));
    }
    for (int i = 0; i < 2; ++i) softmax.sum[i] += even_sum[i] + odd_sum[i];
  }

  static void store_out(const AttentionForward& args, int64_t row, int64_t head, int64_t first, const Softmax& softmax,
                        const float* out, int64_t v_tiles) {
    const AttentionShape& shape = args.shape;
    const int count = static_cast<int>(least(kStrip, shape.queries - first));
    alignas(64) float factors[kStrip] = {};
    for (int i = 0; i < kStrip; ++i) {
      if (kUnpacked[i] >= count) continue;
      const Normalizer by = normalize(softmax.largest[i / 16][i % 16], softmax.sum[i / 16][i % 16],
                                      shape.sinks == nullptr ? nullptr : shape.sinks + head);
      args.lse[(row * shape.heads + head) * shape.queries + first + kUnpacked[i]] = by.lse;
      factors[kUnpacked[i]] = by.factor;
    }
    for (int half = 0; half < 2; ++half) {
      store_columns(out + half * 16, kStrip, v_tiles, load<Float>(factors + half * 16), shape.v_size, args.o, row,
                    first + half * 16, head, static_cast<int>(most(0, least(16, count - half * 16))));
    }
  }

  static double backward_block(const AttentionBackward& args, int64_t row, int64_t head, int64_t first,
                               const BackwardScratch& scratch) {
    const AttentionShape& shape = args.shape;
    const int strips = static_cast<int>(least(kStrips, (shape.queries - first + kStrip - 1) / kStrip));
    const Block block(shape, row, first, kUnpacked);
    RowStatistics<kStrip> statistics[kStrips];
    double sink_sum = 0;
    for (int s = 0; s < strips; ++s) {
      const int64_t query = first + s * kStrip;
      sink_sum += load_statistics(args, row, head, query, kUnpacked, statistics[s]);
      for (float& delta : statistics[s].delta) delta = -delta;  // Gradients of probabilities are summed from -delta.
      load_tokens(args.q, row, query, head, shape.queries, shape.size, kUnpacked, scratch.staging);
      pack_columns(scratch.staging, scratch.k_steps, scratch.queries + s * 2 * scratch.k_steps * kTile);
      pack_pairs(scratch.staging, scratch.tiles, scratch.query_pairs + s * scratch.tiles * kTile);
      load_tokens(args.grad_o, row, query, head, shape.queries, shape.v_size, kUnpacked, scratch.staging);
      pack_columns(scratch.staging, scratch.v_steps, scratch.grad_o + s * 2 * scratch.v_steps * kTile);
      pack_pairs(scratch.staging, scratch.v_tiles, scratch.grad_o_pairs + s * scratch.v_tiles * kTile);
    }
    fill_zero(scratch.grad_q, scratch.tiles * 16 * kQueries);
    for (int64_t base = block.all.begin / kKeys * kKeys; base < block.all.end; base += kKeys) {
      backward_keys(shape, block, strips, statistics, base, scratch);
    }
    for (int64_t query = first; query < least(first + kQueries, shape.queries); query += 16) {
      store_columns(scratch.grad_q + (query - first), kQueries, scratch.tiles, Isa::all(shape.scale), shape.size,
                    args.grad_q, row, query, head, static_cast<int>(least(16, shape.queries - query)));
    }
    return sink_sum;
  }

  static void backward_keys(const AttentionShape& shape, const Block& block, int strips,
                            const RowStatistics<kStrip>* statistics, int64_t base, const BackwardScratch& scratch) {
    const float scale = shape.scale * kLog2E;
    int first_sub = kSubs, last_sub = 0;
    for (int s = 0; s < strips; ++s) {
      const Subs subs(block.strips[s], base);
      if (subs.begin >= subs.end) continue;
      for (int sub = subs.begin; sub < subs.end; ++sub) {
        const int64_t at = base / kSub + sub;
        strip_products<From::kZero>(1, scratch.k_steps, scratch.keys + at * 2 * scratch.k_steps * kTile,
                                    scratch.queries + s * 2 * scratch.k_steps * kTile, scratch.scores);
        strip_products<From::kRow>(1, scratch.v_steps, scratch.values + at * 2 * scratch.v_steps * kTile,
                                   scratch.grad_o + s * 2 * scratch.v_steps * kTile, scratch.grad_weights,
                                   statistics[s].delta);
        const int64_t from = base + sub * kSub;
        const int32_t *begins = block.begin + s * kStrip, *ends = block.end + s * kStrip;
        if (block.strips[s].masks(from, from + kSub)) {
          score_gradients<true>(scratch, sub, s, from, begins, ends, scale, statistics[s]);
        } else {
          score_gradients<false>(scratch, sub, s, from, begins, ends, scale, statistics[s]);
        }
      }
      first_sub = subs.begin < first_sub ? subs.begin : first_sub;
      last_sub = subs.end > last_sub ? subs.end : last_sub;
      add_products<2>(scratch.tiles, subs.end - subs.begin,
                      scratch.keys_transposed + (base / kSub + subs.begin) * scratch.tiles * kTile,
                      scratch.tiles * kTile, kTile, scratch.grad_score_pairs + (subs.begin * kStrips + s) * 2 * kTile,
                      kStrips * 2 * kTile, kTile, scratch.grad_q + s * kStrip, kQueries, 16 * kQueries);
    }
    for (int sub = first_sub; sub < last_sub; ++sub) {
      for (int s = 0; s < strips;) {  // Runs of strips that see the sub, nearly always one.
        if (!Subs(block.strips[s], base).have(sub)) {
          ++s;
          continue;
        }
        int end = s + 1;
        while (end < strips && Subs(block.strips[end], base).have(sub)) ++end;
        const int64_t key = base + sub * kSub;
        add_columns(scratch.v_tiles, end - s, scratch.weights + (sub * 2 * kStrips + s) * kTile,
                    scratch.grad_o_pairs + s * scratch.v_tiles * kTile, scratch.grad_v + key * scratch.v_tiles * 16);
        add_columns(scratch.tiles, end - s, scratch.grad_scores + (sub * 2 * kStrips + s) * kTile,
                    scratch.query_pairs + s * scratch.tiles * kTile, scratch.grad_k + key * scratch.tiles * 16);
        s = end;
      }
    }
  }

  // Turns scores, and gradients of probabilities less delta, into probabilities and gradients of scores, as operands.
  template <bool kMasked>
  static void score_gradients(const BackwardScratch& scratch, int sub, int strip, int64_t from, const int32_t* begins,
                              const int32_t* ends, float scale, const RowStatistics<kStrip>& statistics) {
    Float lse[2];
    Int begin[2], end[2];
    for (int i = 0; i < 2; ++i) {
      lse[i] = load<Float>(statistics.lse + i * 16);
      begin[i] = load<Int>(begins + i * 16), end[i] = load<Int>(ends + i * 16);
    }
    uint16_t* const pairs = scratch.grad_score_pairs + (sub * kStrips + strip) * 2 * kTile;
    for (int key = 0; key < kSub; key += 2) {
      Words change[2];
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const Int number = Isa::numbers(static_cast<int32_t>(from) + key + odd);
        const float* const score = scratch.scores + (key + odd) * kStrip;
        const float* const grad = scratch.grad_weights + (key + odd) * kStrip;
        Float weight[2], own[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          weight[i] = Isa::exp2(load<Float>(score + i * 16) * scale - lse[i]);
          own[i] = weight[i] * load<Float>(grad + i * 16);
          if constexpr (kMasked) {
            const Int seen = (begin[i] <= number) & (number < end[i]);
            weight[i] = seen ? weight[i] : Isa::all(0);
            own[i] = seen ? own[i] : Isa::all(0);
          }
        }
        // This is row key % 16 of the tile of key / 16.
        const int64_t at = ((sub * 2 + key / 16) * kStrips + strip) * kTile + (key % 16 + odd) * 32;
        change[odd] = Isa::narrow(own[0], own[1]);
        store(scratch.weights + at, Isa::narrow(weight[0], weight[1]));
        store(scratch.grad_scores + at, change[odd]);
      }
      store(pairs + key / 2 * 32, Isa::unpack_low(change[0], change[1]));
      store(pairs + kTile + key / 2 * 32, Isa::unpack_high(change[0], change[1]));
    }
  }

  // C [subs * 32, kStrip] = A B^T, or that added to rows `start`. A has subs of keys, [subs][2][steps], and B a strip,
  // [steps][2]. A core has no spare register for a tile that is still being stored, so 16 rows are stored while the
  // next 16 are multiplied (79 cycles a sub with one step, compared with 119 in one piece and an ideal of 64).
  enum class From { kZero, kRow };
  template <From kFrom>
  static void strip_products(int64_t subs, int64_t steps, const uint16_t* a, const uint16_t* b, float* c,
                             const float* start = nullptr) {
    if (steps == 1) load_strip(b);
    for (int64_t sub = 0; sub < subs; ++sub) {
      multiply_half<0, 1, 4, kFrom>(steps, a, b, start);
      a += steps * kTile;
      if (sub > 0) store_half<2, 3>(c - 16 * kStrip);
      multiply_half<2, 3, 5, kFrom>(steps, a, b, start);
      a += steps * kTile;
      store_half<0, 1>(c);
      c += kSub * kStrip;
    }
    store_half<2, 3>(c - 16 * kStrip);
  }

  template <int kLeft, int kRight, int kA, From kFrom>
  static TITAN_INLINE void multiply_half(int64_t steps, const uint16_t* a, const uint16_t* b, const float* start) {
    if constexpr (kFrom == From::kZero) {
      Isa::template zero_tile<kLeft>();
      Isa::template zero_tile<kRight>();
    } else {
      Isa::template load_tile<kLeft>(start, 0);
      Isa::template load_tile<kRight>(start + 16, 0);
    }
    for (int64_t step = 0; step < steps; ++step, a += kTile, b += 2 * kTile) {
      Isa::template load_tile<kA>(a, 64);
      if (steps > 1) load_strip(b);
      Isa::template multiply<kLeft, kA, 6>();
      Isa::template multiply<kRight, kA, 7>();
    }
  }
  static TITAN_INLINE void load_strip(const uint16_t* b) {
    Isa::template load_tile<6>(b, 64);
    Isa::template load_tile<7>(b + kTile, 64);
  }
  template <int kLeft, int kRight>
  static TITAN_INLINE void store_half(float* c) {
    Isa::template store_tile<kLeft>(c, kStrip * 4);
    Isa::template store_tile<kRight>(c + 16, kStrip * 4);
  }

  // C[kM tiles, kN tiles] += sum over `steps` of A B. Tile (i, step) of A is at a + i * a_next + step * a_step, tile
  // (step, j) of B at b + j * b_next + step * b_step.
  template <int kM, int kN>
  static TITAN_INLINE void add_product(int64_t steps, const uint16_t* a, int64_t a_step, int64_t a_next,
                                       const uint16_t* b, int64_t b_step, int64_t b_next, float* c, int64_t ldc) {
    Isa::template load_tile<0>(c, ldc * 4);
    if constexpr (kN == 2) Isa::template load_tile<1>(c + 16, ldc * 4);
    if constexpr (kM == 2) Isa::template load_tile<2>(c + 16 * ldc, ldc * 4);
    if constexpr (kM == 2 && kN == 2) Isa::template load_tile<3>(c + 16 * ldc + 16, ldc * 4);
    for (int64_t step = 0; step < steps; ++step, a += a_step, b += b_step) {
      Isa::template load_tile<4>(a, 64);
      Isa::template load_tile<6>(b, 64);
      Isa::template multiply<0, 4, 6>();
      if constexpr (kN == 2) {
        Isa::template load_tile<7>(b + b_next, 64);
        Isa::template multiply<1, 4, 7>();
      }
      if constexpr (kM == 2) {
        Isa::template load_tile<5>(a + a_next, 64);
        Isa::template multiply<2, 5, 6>();
      }
      if constexpr (kM == 2 && kN == 2) Isa::template multiply<3, 5, 7>();
    }
    Isa::template store_tile<0>(c, ldc * 4);
    if constexpr (kN == 2) Isa::template store_tile<1>(c + 16, ldc * 4);
    if constexpr (kM == 2) Isa::template store_tile<2>(c + 16 * ldc, ldc * 4);
    if constexpr (kM == 2 && kN == 2) Isa::template store_tile<3>(c + 16 * ldc + 16, ldc * 4);
  }

  // Does the same over `m` tiles of rows of C, c_next apart.
  template <int kN>
  static void add_products(int64_t m, int64_t steps, const uint16_t* a, int64_t a_step, int64_t a_next,
                           const uint16_t* b, int64_t b_step, int64_t b_next, float* c, int64_t ldc, int64_t c_next) {
    int64_t i = 0;
    for (; i + 2 <= m; i += 2) {
      add_product<2, kN>(steps, a + i * a_next, a_step, a_next, b, b_step, b_next, c + i * c_next, ldc);
    }
    if (i < m) add_product<1, kN>(steps, a + i * a_next, a_step, a_next, b, b_step, b_next, c + i * c_next, ldc);
  }

  // Adds to 32 rows of `n` tiles. Each strip gives a tile of A for each half of the rows, and a row of tiles of B.
  static void add_columns(int64_t n, int64_t steps, const uint16_t* a, const uint16_t* b, float* c) {
    const int64_t ldc = n * 16;
    int64_t j = 0;
    for (; j + 2 <= n; j += 2) {
      add_product<2, 2>(steps, a, kTile, kStrips * kTile, b + j * kTile, n * kTile, kTile, c + j * 16, ldc);
    }
    if (j < n) add_product<2, 1>(steps, a, kTile, kStrips * kTile, b + j * kTile, n * kTile, 0, c + j * 16, ldc);
  }

  // Loads 32 tokens as rows of kStagingRow, in the given order (null: ascending), with zeros after the head and past
  // the last token.
  static constexpr int64_t kStagingRow = 256;
  static void load_tokens(const Heads& heads, int64_t row, int64_t first, int64_t head, int64_t tokens, int64_t size,
                          const uint8_t* order, uint16_t* out) {
    const int64_t padded = round_up(size, 32);
    for (int i = 0; i < 32; ++i, out += kStagingRow) {
      const int64_t token = first + (order == nullptr ? i : order[i]);
      const uint16_t* const from = token < tokens ? row_of(heads, row, token, head) : nullptr;
      for (int64_t j = 0; j < padded; j += 32) {
        store(out + j, from == nullptr ? Words{} : Isa::load_words(from + j, size - j));
      }
    }
  }

  // Packs as A, two tiles of rows: [2][steps].
  static void pack_rows(const uint16_t* tokens, int64_t steps, uint16_t* out) {
    for (int64_t i = 0; i < 32; ++i) {
      for (int64_t step = 0; step < steps; ++step) {
        store(out + (i / 16 * steps + step) * kTile + i % 16 * 32, load<Words>(tokens + i * kStagingRow + step * 32));
      }
    }
  }

  // Packs the transpose as B, two tiles of columns: [steps][2].
  static void pack_columns(const uint16_t* tokens, int64_t steps, uint16_t* out) {
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t half = 0; half < 2; ++half) {
        Int rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = load<Int>(tokens + (half * 16 + i) * kStagingRow + step * 32);
        transpose(rows);
        for (int i = 0; i < 16; ++i) store(out + (step * 2 + half) * kTile + i * 32, (Words)rows[i]);
      }
    }
  }

  // Pairs of the words 0 to 15, and 16 to 31, of two vectors.
  static constexpr Words kLowPairs = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  static constexpr Words kHighPairs = kLowPairs + 16;

  // Packs as B, with the 32 tokens as k: [tiles].
  static void pack_pairs(const uint16_t* tokens, int64_t tiles, uint16_t* out) {
    for (int64_t tile = 0; tile < tiles; tile += 2) {
      for (int pair = 0; pair < 16; ++pair) {
        const uint16_t* const row = tokens + 2 * pair * kStagingRow + tile * 16;
        const Words a = load<Words>(row), b = load<Words>(row + kStagingRow);
        store(out + tile * kTile + pair * 32, __builtin_shuffle(a, b, kLowPairs));
        if (tile + 1 < tiles) store(out + (tile + 1) * kTile + pair * 32, __builtin_shuffle(a, b, kHighPairs));
      }
    }
  }

  // Packs the transpose as A, with the 32 tokens as k: [tiles].
  static void pack_transposed(const uint16_t* tokens, int64_t tiles, uint16_t* out) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      Int rows[16];
      for (int pair = 0; pair < 16; ++pair) {
        const uint16_t* const row = tokens + 2 * pair * kStagingRow + tile / 2 * 32;
        const Words a = load<Words>(row), b = load<Words>(row + kStagingRow);
        rows[pair] = (Int)__builtin_shuffle(a, b, tile % 2 == 0 ? kLowPairs : kHighPairs);
      }
      transpose(rows);
      for (int i = 0; i < 16; ++i) store(out + tile * kTile + i * 32, (Words)rows[i]);
    }
  }

  // Transposes 16 x 16 numbers of 32 bits, by exchanging ever larger squares.
  static TITAN_INLINE void transpose(Int* rows) {
    exchange<1>(rows);
    exchange<2>(rows);
    exchange<4>(rows);
    exchange<8>(rows);
  }
  template <int kDistance>
  static TITAN_INLINE void exchange(Int* rows) {
    const Int lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Int own = (lane & kDistance) == 0;
    const Int low = own ? lane : lane + (16 - kDistance), high = own ? lane + kDistance : lane + 16;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if ((i & kDistance) != 0) continue;
      const Int a = rows[i], b = rows[i + kDistance];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + kDistance] = __builtin_shuffle(a, b, high);
    }
  }

  // Writes `count` of 16 columns, each `tiles` * 16 numbers high, as rows of bf16.
  static void store_columns(const float* from, int64_t ldc, int64_t tiles, Float factor, int64_t size,
                            const HeadsOut& heads, int64_t row, int64_t first, int64_t head, int count) {
    for (int64_t tile = 0; tile < tiles; tile += 2) {
      Int low[16], high[16];
      for (int i = 0; i < 16; ++i) {
        low[i] = (Int)(load<Float>(from + (tile * 16 + i) * ldc) * factor);
        high[i] = Int{};
        if (tile + 1 < tiles) high[i] = (Int)(load<Float>(from + (tile * 16 + 16 + i) * ldc) * factor);
      }
      transpose(low);
      transpose(high);
      for (int i = 0; i < count; ++i) {
        Isa::store_words(row_of(heads, row, first + i, head) + tile * 16, Isa::narrow((Float)low[i], (Float)high[i]),
                         size - tile * 16);
      }
    }
  }

  static void store_row(const float* from, int64_t tiles, float factor, int64_t size, uint16_t* to) {
    for (int64_t tile = 0; tile < tiles; tile += 2) {
      const Float low = load<Float>(from + tile * 16) * factor;
      const Float high = tile + 1 < tiles ? load<Float>(from + tile * 16 + 16) * factor : Isa::all(0);
      Isa::store_words(to + tile * 16, Isa::narrow(low, high), size - tile * 16);
    }
  }

  template <typename Vector, typename Number>
  static TITAN_INLINE Vector load(const Number* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
  template <typename Vector, typename Number>
  static TITAN_INLINE void store(Number* to, Vector value) {
    *reinterpret_cast<Vector*>(to) = value;
  }
  static void fill_zero(float* to, int64_t count) { __builtin_memset(to, 0, count * sizeof(float)); }
};

}  // namespace
}  // namespace titan::kernels
