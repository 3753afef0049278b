#include "common/plan/models/activations.h"

#include <gtest/gtest.h>

#include "common/plan/models/registry.h"

namespace titan::models {
namespace {

int64_t bytes_of(const std::vector<KnapsackItem>& items) {
  int64_t sum = 0;
  for (const KnapsackItem& item : items) sum += item.bytes;
  return sum;
}

// Computed by hand for one layer of Llama in float32 with LibTorch's CPU kernels;
// tests/worker/rank/runtime/checkpoint_memory_test.cc measures the same with an allocator.
TEST(ActivationsTest, LlamaLayerByHand) {
  const ModelSpec spec = find("llama3", "debugmodel").value();
  const int64_t n = 100, row = 4 * n, kv = spec.n_kv_heads * spec.head_dim;
  const auto blocks = block_activations(spec, {.tokens = n, .element_bytes = 4, .fused_norms = false});
  ASSERT_EQ(blocks.size(), static_cast<size_t>(spec.n_layers + 2));
  EXPECT_EQ(blocks[0].input + blocks[0].graph, 0);
  const int64_t attention = row * (spec.dim + spec.n_heads);
  EXPECT_EQ(blocks[1].input, row * spec.dim);
  EXPECT_EQ(blocks[1].graph,
            row * (2 * (1 + 2 * spec.dim) + spec.dim + (spec.dim + 2 * kv) + 4 * spec.ffn_hidden) + attention);
  EXPECT_EQ(blocks[1].by_operation, row * (spec.dim + kv + spec.ffn_hidden + spec.dim) + attention);
  EXPECT_EQ(bytes_of(blocks[1].costly),
            row * (spec.dim + 2 * kv + spec.dim + 2 * spec.ffn_hidden + spec.dim) + attention);
  // The norm and the softmax of the head are never recomputed.
  EXPECT_EQ(blocks.back().graph, row * (1 + 2 * spec.dim + spec.vocab_size));
  EXPECT_EQ(blocks.back().by_operation, blocks.back().graph);
}

// Tensor ranks split the activations inside a layer, and with sequence parallelism those between layers too.
TEST(ActivationsTest, TensorRanksShare) {
  const ModelSpec spec = find("llama3", "8B").value();
  const auto one = block_activations(spec, {.tokens = 1024});
  const auto cut = block_activations(spec, {.tokens = 1024, .tensor_ranks = 8, .expert_tensor_ranks = 8});
  const auto plain = block_activations(
      spec, {.tokens = 1024, .tensor_ranks = 8, .sequence_parallel = false, .expert_tensor_ranks = 8});
  EXPECT_EQ(8 * cut[1].input, one[1].input);
  EXPECT_EQ(plain[1].input, one[1].input);
  const int64_t gathered =
      2 * 1024 * spec.dim * 2;  // The projections of both halves read an input that is whole on each rank.
  EXPECT_EQ(8 * (cut[1].graph - gathered), one[1].graph - gathered);
  EXPECT_GT(plain[1].graph, cut[1].graph);
}

// In every family, every kind of recomputation saves less than the whole graph.
TEST(ActivationsTest, RecomputationSavesLess) {
  for (const std::string& family : names()) {
    for (const std::string& flavor : flavors(family)) {
      const ModelSpec spec = find(family, flavor).value();
      for (const bool elsewhere : {false, true}) {
        const auto blocks = block_activations(spec, {.tokens = 4096, .experts_elsewhere = elsewhere});
        for (int64_t layer = 1; layer <= spec.n_layers; ++layer) {
          EXPECT_GT(blocks[layer].by_operation, 0) << family << " " << flavor;
          EXPECT_LT(blocks[layer].by_operation, blocks[layer].graph) << family << " " << flavor << " " << layer;
          EXPECT_LT(bytes_of(blocks[layer].costly), blocks[layer].graph) << family << " " << flavor << " " << layer;
        }
      }
    }
  }
}

}  // namespace
}  // namespace titan::models
