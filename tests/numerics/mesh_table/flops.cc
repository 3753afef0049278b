// Counts what a rank computes in one step: products of matrices, and attention.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/numerics/mesh_table/language.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/parallel/context_load_balance.h"

namespace titan::testing {
namespace {

using mesh::Axis;

struct Range {
  int64_t begin = 0, end = 0;
};

// Returns the span of every position of a row. Documents end with the end-of-sequence token, chunks have equal sizes.
std::vector<int64_t> spans_of_row(const RankShare& share, const at::Tensor& row, int64_t chunk) {
  const int64_t length = share.job.config.training.seq_len;
  const bool documents = share.spec.mask == models::Mask::kBlockCausal;
  const auto* token = row.const_data_ptr<int64_t>();
  std::vector<int64_t> spans(length, 0);
  for (int64_t i = 1; i < length; ++i) {
    const bool begins = (documents && token[i - 1] == share.spec.eos_id) || (chunk > 0 && i % chunk == 0);
    spans[i] = spans[i - 1] + (begins ? 1 : 0);
  }
  return spans;
}

// Returns the keys that each position's query sees, summed over the rows of a microbatch and the layers.
std::vector<int64_t> work_of(const RankShare& share, const at::Tensor& rows) {
  std::vector<int64_t> work(share.job.config.training.seq_len);
  for (int64_t layer = 0; layer < share.spec.n_layers; ++layer) {
    const int64_t window = share.spec.layer_window(layer);
    for (const at::Tensor& row : rows.unbind()) {
      const std::vector<int64_t> spans = spans_of_row(share, row, share.spec.layer_chunk(layer));
      for (size_t i = 0, first = 0; i < spans.size(); ++i) {
        if (spans[i] != spans[first]) first = i;
        const auto seen = static_cast<int64_t>(i - first + 1);
        work[i] += window > 0 ? std::min(seen, window) : seen;
      }
    }
  }
  return work;
}

// Returns the parts of a row that each rank of the context axis has: one chunk from the front and one from the back, or
// parts that balance the microbatch's work.
std::vector<std::vector<Range>> shares_of(const RankShare& share, const at::Tensor& rows) {
  const int64_t length = share.job.config.training.seq_len, n = share.context;
  if (n == 1) return {{{0, length}}};
  std::vector<std::vector<Range>> shares(n);
  const std::optional<std::string>& balancer = share.parallelism.context_parallel_load_balancer;
  if (balancer == "ptrr") {
    const nn::RowShares dealt = parallel::split_by_work(work_of(share, rows), static_cast<int>(n));
    for (int64_t rank = 0; rank < n; ++rank) {
      for (const nn::Segment& one : dealt[rank]) shares[rank].push_back({one.position, one.position + one.length});
    }
    return shares;
  }
  const bool balanced = balancer == "headtail";
  const int64_t chunk = length / (balanced ? 2 * n : n);
  for (int64_t rank = 0; rank < n; ++rank) {
    shares[rank].push_back({rank * chunk, (rank + 1) * chunk});
    if (balanced) shares[rank].push_back({(2 * n - 1 - rank) * chunk, (2 * n - rank) * chunk});
  }
  return shares;
}

// Returns the number of queries that see a key, times the number of keys that are seen, of one block in one span.
int64_t scores_of(const std::vector<int64_t>& spans, int64_t span, Range queries, Range keys, int64_t window) {
  const auto sees = [&](int64_t query, int64_t key) {
    return spans[query] == span && spans[key] == span && key <= query && (window == 0 || query - key < window);
  };
  int64_t seeing = 0, seen = 0;
  for (int64_t q = queries.begin; q < queries.end; ++q) {
    bool any = false;
    for (int64_t k = keys.begin; k < keys.end; ++k) any |= sees(q, k);
    seeing += any;
  }
  for (int64_t k = keys.begin; k < keys.end; ++k) {
    bool any = false;
    for (int64_t q = queries.begin; q < queries.end; ++q) any |= sees(q, k);
    seen += any;
  }
  return seeing * seen;
}

// Returns the number of scores of one head that this rank computes in a row.
int64_t scores_of_row(const RankShare& share, const at::Tensor& row, const std::vector<std::vector<Range>>& shares,
                      int64_t layer) {
  const std::vector<int64_t> spans = spans_of_row(share, row, share.spec.layer_chunk(layer));
  int64_t sum = 0;
  for (const Range& queries : shares[share.mesh.index(share.rank, Axis::kContext)]) {
    for (const std::vector<Range>& owned : shares) {
      for (const Range& keys : owned) {
        for (int64_t span = 0; span <= spans.back(); ++span) {
          sum += scores_of(spans, span, queries, keys, share.spec.layer_window(layer));
        }
      }
    }
  }
  return sum;
}

// Returns the same, summed over all rows of a step.
int64_t scores_of_layer(const RankShare& share, const at::Tensor& tokens, int64_t layer) {
  const int64_t rows = share.rows * share.microbatches, first = rows * share.mesh.index(share.rank, Axis::kBatch);
  const bool packed = share.spec.mask == models::Mask::kBlockCausal;
  int64_t sum = 0;
  for (int64_t begin = first; begin < first + rows; begin += share.rows) {
    const at::Tensor microbatch = tokens.narrow(0, begin, share.rows);
    const std::vector<std::vector<Range>> shares = shares_of(share, microbatch);
    for (const at::Tensor& row : microbatch.unbind()) {
      const int64_t scores = scores_of_row(share, row, shares, layer);
      if (!packed) return scores * rows;  // All rows are alike.
      sum += scores;
    }
  }
  return sum;
}

// Forward: the scores and their product with the values. Backward: the scores again, and the gradients of queries,
// keys, weights and values. The CPU's kernel has one head size.
int64_t flops_of_attention(const RankShare& share) {
  const at::Tensor tokens =
      share.model.rows_of_step(share.job, share.job.steps - 1, 0, share.job.global_batch).at(data::kTokens);
  const int64_t size = std::max(share.spec.head_dim, share.spec.v_head_dim);
  std::map<std::pair<int64_t, int64_t>, int64_t> known;  // Keyed by chunk and window.
  int64_t sum = 0;
  for (const std::string& name : share.blocks()) {
    if (!absl::StartsWith(name, "layers.")) continue;
    const int64_t layer = RankShare::layer_number(name);
    const auto [place, is_new] = known.try_emplace({share.spec.layer_chunk(layer), share.spec.layer_window(layer)}, 0);
    if (is_new) place->second = scores_of_layer(share, tokens, layer);
    const int64_t scores = place->second;
    sum += (2 * share.attention_passes(name) + 5) * 2 * scores * size * (share.spec.n_heads / share.tensor);
  }
  return sum;
}

}  // namespace

// A product x [tokens, in] W^T runs once in each forward pass, and costs twice as much in the backward pass. Attention
// with capped scores consists of products.
int64_t language_product_flops(const RankShare& share) {
  int64_t sum = share.spec.attention_softcap > 0 ? flops_of_attention(share) : 0;
  const auto add = [&](const Part& part, int64_t tokens, int64_t passes) {
    sum += (2 * passes + 4) * share.microbatches * tokens * part.numel();
  };
  for (const std::string& name : share.blocks()) {
    if (name == "tok_embeddings" || share.is_tower(name)) continue;
    if (name == "output") {
      for (const Part& part : share.parts_of(share.spec.tied_embeddings ? "tok_embeddings" : "output")) {
        if (part.is_matrix()) add(part, share.tokens, 1);
      }
      continue;
    }
    for (const Part& part : share.parts_of(name)) {
      if (!part.is_matrix()) continue;
      const bool routes = absl::StrContains(part.fqn, "router.gate");
      add(part, routes ? share.routed_tokens : share.tokens, share.product_passes(name, part.fqn));
    }
    if (!share.has_experts(name)) continue;
    const models::MoeSpec& moe = *share.spec.moe;
    const int64_t hidden = moe.hidden / (share.apart ? 1 : share.tensor);
    for (int64_t i = 0; i < share.microbatches; ++i) {
      sum += (2 * share.passes(name) + 4) * share.received(name, i) * 3 * share.spec.dim * hidden;
    }
  }
  return sum;
}

int64_t language_attention_flops(const RankShare& share) {
  return share.spec.attention_softcap > 0 ? 0 : flops_of_attention(share);
}

}  // namespace titan::testing
