#include "worker/rank/kernels/cpu/attention.h"

#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "worker/rank/kernels/cpu/attention_levels.h"
#include "worker/rank/kernels/cpu/team.h"

namespace titan::kernels {
namespace {

constexpr int64_t kMaxHead = 256;

// Treats denormals as zero while it lives, because arithmetic on them takes a hundred times as long.
class NoDenormals {
 public:
  NoDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~NoDenormals() { _mm_setcsr(saved_); }
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;

 private:
  const unsigned saved_;
};

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Scratch = std::unique_ptr<char, Free>;

// Allocates one piece per thread. Returns an empty list if memory runs out.
std::vector<Scratch> allocate(int threads, size_t bytes) {
  std::vector<Scratch> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    if (all.back() == nullptr) return {};
  }
  return all;
}

bool accepts(const AttentionShape& shape) {
  const bool heads = shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0;
  const bool sizes = shape.size > 0 && shape.size <= kMaxHead && shape.v_size > 0 && shape.v_size <= kMaxHead;
  const bool tokens = shape.batch >= 0 && shape.queries >= 0 && shape.keys >= 0 &&
                      std::max(shape.queries, shape.keys) <= std::numeric_limits<int32_t>::max() / 2;
  const bool visible = shape.visible != nullptr || shape.queries == 0;
  return heads && sizes && tokens && visible && shape.scale >= 0 && shape.threads > 0;
}

// Makes about eight parts per thread, because parts take unequal time, and no more, because each part reads the keys
// again.
std::vector<AttentionPart> forward_parts(const AttentionShape& shape, int64_t query_block) {
  const int64_t blocks = (shape.queries + query_block - 1) / query_block;
  const int64_t kv_heads = shape.batch * shape.kv_heads;
  const int64_t wanted = shape.threads == 1 ? 1 : (8 * shape.threads + kv_heads - 1) / std::max<int64_t>(kv_heads, 1);
  const int64_t step = (blocks + wanted - 1) / std::max<int64_t>(wanted, 1) * query_block;
  std::vector<AttentionPart> parts;
  for (int64_t row = 0; row < shape.batch; ++row) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      for (int64_t begin = 0; begin < shape.queries; begin += step) {
        parts.push_back({row, head, begin, std::min(begin + step, shape.queries)});
      }
    }
  }
  return parts;
}

std::vector<AttentionPart> backward_parts(const AttentionShape& shape) {
  std::vector<AttentionPart> parts;
  for (int64_t row = 0; row < shape.batch; ++row) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) parts.push_back({row, head, 0, shape.queries});
  }
  return parts;
}

// Calls work(part, scratch) for every part, each on one thread.
template <typename Work>
bool run_parts(const AttentionLevel& level, int threads, const std::vector<AttentionPart>& parts, size_t bytes,
               const Work& work) {
  const auto count = static_cast<int64_t>(parts.size());
  threads = static_cast<int>(std::clamp<int64_t>(count, 1, threads));
  const std::vector<Scratch> scratch = allocate(threads, bytes);
  if (scratch.empty()) return false;
  std::atomic<int64_t> next = 0;
  in_team(threads, [&](int member, int) {
    const NoDenormals no_denormals;
    level.enter();
    while (true) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) break;
      work(parts[i], scratch[member].get());
    }
    level.leave();
  });
  return true;
}

const AttentionLevel* find_level(Level level) {
  if (best_level() < level) return nullptr;  // An empty best_level() is less than any level.
  switch (level) {
    case Level::kAvx2:
      return &kAttentionAvx2;
    case Level::kAvx512:
    case Level::kAvx512Bf16:
      return &kAttentionAvx512;
    case Level::kAmx:
      return &kAttentionAmx;
  }
  __builtin_unreachable();
}

}  // namespace

bool run_attention(const AttentionLevel& level, const AttentionForward& args) {
  if (!accepts(args.shape)) return false;
  return run_parts(level, args.shape.threads, forward_parts(args.shape, level.query_block),
                   level.forward_bytes(args.shape),
                   [&](const AttentionPart& part, char* scratch) { level.forward(args, part, scratch); });
}

bool run_attention(const AttentionLevel& level, const AttentionBackward& args) {
  const AttentionShape& shape = args.shape;
  const bool wants_sinks = args.grad_sinks != nullptr;
  if (!accepts(shape) || (wants_sinks && shape.sinks == nullptr)) return false;
  if (args.delta == nullptr && args.o.data == nullptr) return false;
  std::vector<double> sink_sums(wants_sinks ? shape.batch * shape.heads : 0);
  const bool done = run_parts(level, shape.threads, backward_parts(shape), level.backward_bytes(shape),
                              [&](const AttentionPart& part, char* scratch) {
                                level.backward(args, part, wants_sinks ? sink_sums.data() : nullptr, scratch);
                              });
  if (!done || !wants_sinks) return done;
  for (int64_t head = 0; head < shape.heads; ++head) {
    double sum = 0;
    for (int64_t row = 0; row < shape.batch; ++row) sum += sink_sums[row * shape.heads + head];
    args.grad_sinks[head] = static_cast<float>(-sum);
  }
  return true;
}

bool attention_forward(Level level, const AttentionForward& args) {
  const AttentionLevel* const found = find_level(level);
  return found != nullptr && run_attention(*found, args);
}

bool attention_backward(Level level, const AttentionBackward& args) {
  const AttentionLevel* const found = find_level(level);
  return found != nullptr && run_attention(*found, args);
}

void visible_keys(const KeyRangeMask& mask, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys,
                  KeyRange* visible) {
  const int64_t* const starts = mask.document_starts;
  const int64_t* const starts_end = starts + mask.documents;
  const int64_t* next_start = std::upper_bound(starts, starts_end, first_query);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t position = first_query + i;
    int64_t begin = 0;
    int64_t end = mask.causal ? position + 1 : std::numeric_limits<int64_t>::max();
    while (next_start != starts_end && *next_start <= position) ++next_start;
    if (next_start != starts) begin = next_start[-1];
    if (next_start != starts_end) end = std::min(end, *next_start);
    if (mask.window > 0) begin = std::max(begin, position - mask.window + 1);
    if (mask.chunk > 0) {
      const int64_t chunk_begin = position - position % mask.chunk;
      begin = std::max(begin, chunk_begin);
      end = std::min(end, chunk_begin + mask.chunk);
    }
    begin = std::clamp(begin - first_key, int64_t{0}, keys);
    end = std::clamp(end - first_key, begin, std::max(begin, keys));
    visible[i] = {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
  }
}

}  // namespace titan::kernels
