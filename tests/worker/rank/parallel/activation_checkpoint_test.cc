#include "worker/rank/parallel/activation_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/parallel/checkpointed_block.h"

namespace titan::parallel {
namespace {

using testing::CheckpointedBlock;
using ::testing::ElementsAre;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::kRows;
using testing::kTokens;

comm::LedgerCounts twice(comm::LedgerCounts counts) {
  for (auto& [operation, entry] : counts) entry = {2 * entry.calls, 2 * entry.bytes};
  return counts;
}

// Returns whether the family's test is slow: CPUs compute bf16 products of few rows slowly.
bool test_is_slow(const std::string& family) { return family != "llama3" && family != "qwen3"; }

const std::vector<std::string> kGate = {"moe.router.gate"};

// Every block of every family, at every precision: with saved results, its output and all gradients have the bits of a
// block that keeps its graph, twice in a row.
TEST(SelectiveTest, BitsAreThoseWithoutCheckpointing) {
  for (const auto& [family, flavor, layer] :
       std::vector<std::tuple<const char*, const char*, int>>{{"llama3", "debugmodel", 0},
                                                              {"llama4", "debugmodel", 1},
                                                              {"deepseek_v3", "debugmodel", 0},
                                                              {"deepseek_v3", "debugmodel", 1},
                                                              {"qwen3", "debugmodel", 0},
                                                              {"qwen3", "debugmodel_moe", 1},
                                                              {"gpt_oss", "debugmodel", 0}}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      if (type == at::kBFloat16 && test_is_slow(family)) continue;
      SCOPED_TRACE(absl::StrCat(family, " ", flavor, " layer ", layer, " ", c10::toString(type)));
      CheckpointedBlock test(family, flavor, type, layer);
      const std::vector<at::Tensor> expected = test.plain();
      for (const auto& policy :
           {selective_op_policy(*test.block, kGate), memory_budget_policy(0.4, {}), memory_budget_policy(1, {})}) {
        for (int microbatch = 0; microbatch < 2; ++microbatch) {
          test.first_pass(*policy);
          expect_same_bits(test.second_pass(), expected);
          EXPECT_EQ(test.saved.bytes(), 0) << "results outlive the second pass";
        }
      }
    }
  }
}

// The first, third, fifth and seventh of Llama's seven products are saved, and attention with its denominators. The
// second pass computes wk, wo and w3.
TEST(SelectiveTest, SavesEverySecondProductAndAttention) {
  CheckpointedBlock test("llama3", "debugmodel", at::kFloat);
  const auto policy = selective_op_policy(*test.block, kGate);
  test.first_pass(*policy);
  const int64_t n = kRows * kTokens, dim = test.spec.dim, hidden = test.spec.ffn_hidden;
  const int64_t kv = test.spec.n_kv_heads * test.spec.head_dim;
  EXPECT_EQ(test.saved.bytes(), 4 * n * (dim + kv + hidden + dim + /*attention*/ dim + test.spec.n_heads));
  test.second_pass();
  EXPECT_EQ(test.again, 2 * n * dim * (kv + dim + hidden));
}

// Products with a listed module's shape are recomputed wherever they are, and do not count as one of two.
TEST(SelectiveTest, ListedShapesAreRecomputed) {
  CheckpointedBlock test("llama3", "debugmodel", at::kFloat);
  const auto policy = selective_op_policy(*test.block, {"feed_forward.w1"});
  test.first_pass(*policy);
  const int64_t n = kRows * kTokens, dim = test.spec.dim, hidden = test.spec.ffn_hidden;
  // wq, wv and w2 are saved; w2 is the fifth that counts, since w3 has w1's shape.
  EXPECT_EQ(test.saved.bytes(), 4 * n * (3 * dim + /*attention*/ dim + test.spec.n_heads));
  test.second_pass();
  EXPECT_EQ(test.again, 2 * n * dim * (2 * dim + 2 * hidden));
}

// The router's gate is recomputed and does not count, nor do the routed experts' products.
TEST(SelectiveTest, RoutersAreRecomputed) {
  CheckpointedBlock test("deepseek_v3", "debugmodel", at::kFloat);
  const models::ModelSpec& spec = test.spec;
  const int64_t n = kRows * kTokens, shared = spec.moe->num_shared_experts * spec.moe->hidden;
  const int64_t attention = spec.n_heads * (spec.v_head_dim + 1);
  test.first_pass(*selective_op_policy(*test.block, kGate));
  // Every second one of wq, wkv_a, wkv_b, wo and the shared w1, w3, w2 is saved: wq, wkv_b, w1, w2.
  const int64_t heads = spec.n_heads * (spec.head_dim + spec.qk_nope_head_dim + spec.v_head_dim);
  EXPECT_EQ(test.saved.bytes(), 4 * n * (attention + heads + shared + spec.dim));
  // If the gate counts as the fifth, these are wq, wkv_b, the gate and w3.
  test.first_pass(*selective_op_policy(*test.block, {}));
  EXPECT_EQ(test.saved.bytes(), 4 * n * (attention + heads + spec.moe->num_experts + shared));
}

// In every mode the counted saved bytes equal those that the allocator holds between the passes.
TEST(SelectiveTest, MemoryMatchesThePrediction) {
  testing::AllocationMeter meter;
  const testing::AllocationMeter::Scope scope(meter);
  CheckpointedBlock test("llama3", "debugmodel", at::kFloat);
  const auto held = [&](nn::RecomputePolicy& policy) {
    test.saved = {};
    test.first_output.reset();
    const int64_t rest = meter.begin();
    test.first_pass(policy);
    test.first_output.reset();
    return meter.begin() - rest;
  };
  const auto by_operation = selective_op_policy(*test.block, kGate);
  held(*by_operation);  // Fills the caches.
  EXPECT_NEAR(held(*by_operation), test.saved.bytes(), 64);
  int64_t all = 0;
  for (const nn::OpCall& call : test.saved.calls()) all += call.bytes;
  for (const double budget : {0.0, 0.1, 0.3, 0.5, 0.8, 1.0}) {
    std::optional<ParetoPoint> chosen;
    const auto policy = memory_budget_policy(budget, [&](const auto&, const ParetoPoint& choice) { chosen = choice; });
    held(*policy);  // The first pass of a budget saves nothing yet.
    EXPECT_EQ(test.saved.bytes(), 0);
    ASSERT_TRUE(chosen.has_value());
    EXPECT_NEAR(held(*policy), chosen->bytes, 64) << budget;
    EXPECT_LE(chosen->bytes, budget * static_cast<double>(all)) << budget;
    EXPECT_EQ(test.saved.bytes(), chosen->bytes) << budget;
    double flops = 0;
    for (const nn::OpCall& call : test.saved.calls()) flops += call.flops;
    test.second_pass();
    // The counter includes all pairs of queries and keys, the plan only the half that a causal mask leaves.
    if (budget == 0) {
      EXPECT_GE(static_cast<double>(test.again), flops);
    } else if (budget == 1) {
      EXPECT_EQ(test.again, 0);
    }
  }
}

// With sequence parallelism the reduce-scatters' results are saved. Neither they nor the products that feed them run in
// the second pass.
TEST(SelectiveTest, ReduceScattersAreSavedWithTheirProducts) {
  testing::run_ranks({.dp_shard = 1, .tp = 2}, 2, testing::every_axis(), [](testing::ThreadRank& self) {
    for (const char* mode : {"op", "budget"}) {
      CheckpointedBlock test("llama3", "debugmodel", at::kDouble, 1, self.mesh.get());
      const std::vector<at::Tensor> expected = test.plain();
      const auto policy = mode[0] == 'o' ? selective_op_policy(*test.block, kGate) : memory_budget_policy(1, {});
      test.first_pass(*policy);
      if (mode[0] == 'b') test.first_pass(*policy);
      const int64_t n = kRows * kTokens, dim = test.spec.dim, hidden = test.spec.ffn_hidden / 2;
      if (mode[0] == 'o') {
        // Saved are wq, wv and w1 of half the width, attention, and two scattered results.
        EXPECT_EQ(test.saved.bytes(), 8 * n * (dim / 2 + dim / 2 + hidden + dim / 2 + test.spec.n_heads / 2 + dim));
      }
      const int64_t before = self.ledger.counts()["tp/reduce_scatter"].calls;
      expect_same_bits(test.second_pass(), expected);
      EXPECT_EQ(self.ledger.counts()["tp/reduce_scatter"].calls - before, 2) << "only those of the backward pass";
      EXPECT_EQ(test.again, mode[0] == 'o' ? 2 * n * dim * (dim / 2 + hidden) : 0);  // wk and w3.
    }
  });
}

// If attention is saved, the second pass exchanges no keys and values.
TEST(SelectiveTest, SavedAttentionExchangesNothing) {
  for (const char* rotate : {"allgather", "alltoall"}) {
    testing::run_ranks({.dp_shard = 1, .cp = 2}, 2, testing::every_axis(), [&](testing::ThreadRank& self) {
      model::ParallelOptions options;
      options.rotate_method = rotate;
      CheckpointedBlock test("llama3", "debugmodel", at::kDouble, 1, self.mesh.get(), options);
      const comm::LedgerCounts start = self.ledger.counts();
      const std::vector<at::Tensor> expected = test.plain();
      const comm::LedgerCounts plain = comm::subtract(self.ledger.counts(), start);
      test.first_pass(*selective_op_policy(*test.block, kGate));
      expect_same_bits(test.second_pass(), expected);
      EXPECT_EQ(comm::subtract(self.ledger.counts(), start), twice(plain)) << rotate;
    });
  }
}

// With asynchronous tensor parallelism, products inside the overlapped functions are saved like others.
TEST(SelectiveTest, OverlappedProductsAreSaved) {
  testing::run_ranks({.dp_shard = 1, .tp = 2}, 2, testing::every_axis(), [](testing::ThreadRank& self) {
    model::ParallelOptions options;
    options.async_tensor_parallel = true;
    for (const double budget : {-1.0, 0.3, 1.0}) {
      CheckpointedBlock test("llama3", "debugmodel", at::kDouble, 1, self.mesh.get(), options);
      const std::vector<at::Tensor> expected = test.plain();
      const auto policy = budget < 0 ? selective_op_policy(*test.block, kGate) : memory_budget_policy(budget, {});
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        test.first_pass(*policy);
        expect_same_bits(test.second_pass(), expected);
      }
      const int64_t n = kRows * kTokens, dim = test.spec.dim, hidden = test.spec.ffn_hidden / 2;
      if (budget < 0) {
        EXPECT_EQ(test.again, 2 * n * dim * (dim / 2 + hidden));  // wk and w3.
      }
      if (budget == 1) {
        EXPECT_EQ(test.again, 0);
      }
    }
  });
}

// Exchanged rows are saved in both directions, and their numbers too: the second pass sends nothing, while gradients
// are exchanged as before. Under a budget all ranks exchange the rows again.
TEST(SelectiveTest, ExchangedRowsAreSaved) {
  for (const char* family : {"llama4", "deepseek_v3", "gpt_oss"}) {
    testing::run_ranks({.dp_shard = 2, .ep = 2}, 2, testing::every_axis(), [&](testing::ThreadRank& self) {
      CheckpointedBlock test(family, "debugmodel", at::kDouble, 1, self.mesh.get());
      test.input += self.rank;  // The other rank's router makes other choices.
      const std::vector<at::Tensor> expected = test.plain();
      const auto exchanges_of_second_pass = [&](nn::RecomputePolicy& policy) {
        test.first_pass(policy);
        const int64_t before = self.ledger.counts()["ep/all_to_all"].calls;
        expect_same_bits(test.second_pass(), expected);
        return self.ledger.counts()["ep/all_to_all"].calls - before;
      };
      const auto by_operation = selective_op_policy(*test.block, kGate);
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        EXPECT_EQ(exchanges_of_second_pass(*by_operation), 2) << family << ": rows' gradients, there and back";
      }
      const auto everything = memory_budget_policy(1, {});
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        EXPECT_EQ(exchanges_of_second_pass(*everything), 3 + 2) << family;
      }
    });
  }
}

// Queries come before keys and values. If queries have a low rank, their narrow first product, the latent and the last
// product are saved, and the wide ones are recomputed.
TEST(SelectiveTest, LatentsAreSavedAndHeadsRecomputed) {
  CheckpointedBlock test("deepseek_v3", "debugmodel", at::kFloat, 0, nullptr, {},
                         [](models::ModelSpec& spec) { spec.q_lora_rank = 24; });
  test.first_pass(*selective_op_policy(*test.block, kGate));
  const models::ModelSpec& spec = test.spec;
  const int64_t n = kRows * kTokens, hidden = spec.ffn_hidden, attention = spec.n_heads * (spec.v_head_dim + 1);
  const int64_t latent = spec.kv_lora_rank + spec.qk_rope_head_dim;
  EXPECT_EQ(test.saved.bytes(), 4 * n * (24 + latent + attention + spec.dim + hidden));  // wq_a, wkv_a, wo, w3.
}

// For torchtitan a product with a bias is another operation, which is not on its list, so GPT-OSS saves only attention.
TEST(SelectiveTest, BiasedProductsAreRecomputed) {
  CheckpointedBlock test("gpt_oss", "debugmodel", at::kFloat);
  test.first_pass(*selective_op_policy(*test.block, {}));
  EXPECT_EQ(test.saved.bytes(), 4 * kRows * kTokens * test.spec.n_heads * (test.spec.v_head_dim + 1));
}

// If the second pass differs from the first, the result is an error and not a wrong gradient.
TEST(SelectiveTest, TheSecondPassMustRepeatTheFirst) {
  CheckpointedBlock test("llama3", "debugmodel", at::kFloat);
  test.first_pass(*selective_op_policy(*test.block, kGate));
  const nn::SavedActivations::Scope scope(test.saved);
  test.block->forward(test.input, test.context);
  EXPECT_THROW(test.block->forward(test.input, test.context), c10::Error);
}

TEST(CheckpointPlanTest, EveryNthBlockCountedFromOne) {
  const model::Model model = model::build(models::find("llama3", "debugmodel").value(), {.seq_len = 8}).value();
  std::vector<nn::Block*> blocks;
  for (int i = 1; i <= 5; ++i) blocks.push_back(model.blocks[i].get());
  const auto plan = [&](const char* mode, const char* option) {
    std::vector<bool> recompute;
    const auto checkpoints = checkpoint_plan({.mode = mode, .selective_ac_option = option}, blocks).value();
    for (const BlockCheckpoint& one : checkpoints) recompute.push_back(one.recompute);
    return recompute;
  };
  EXPECT_THAT(plan("none", "2"), ElementsAre(false, false, false, false, false));
  EXPECT_THAT(plan("full", "2"), ElementsAre(true, true, true, true, true));
  EXPECT_THAT(plan("selective", "2"), ElementsAre(false, true, false, true, false));
  EXPECT_THAT(plan("selective", "0"), ElementsAre(true, true, true, true, true));
  EXPECT_THAT(plan("selective", "op"), ElementsAre(true, true, true, true, true));
  EXPECT_THAT(plan("memory_budget", ""), ElementsAre(true, true, true, true, true));
  const auto listed = [&](const char* mode, const char* option, std::vector<int64_t> layers) {
    std::vector<bool> recompute;
    const CheckpointOptions options{.mode = mode, .selective_ac_option = option, .layers = std::move(layers)};
    const auto checkpoints = checkpoint_plan(options, blocks).value();
    for (const BlockCheckpoint& one : checkpoints) recompute.push_back(one.recompute);
    return recompute;
  };
  // Layers are selected by their indices in the model, whatever the option's number is. Indices of other ranks' layers
  // have no effect here.
  EXPECT_THAT(listed("full", "2", {0, 3, 17}), ElementsAre(true, false, false, true, false));
  EXPECT_THAT(listed("selective", "2", {0, 1}), ElementsAre(true, true, false, false, false));
  EXPECT_THAT(listed("selective", "op", {4}), ElementsAre(false, false, false, false, true));
  EXPECT_THAT(listed("none", "2", {4}), ElementsAre(false, false, false, false, false));
  const auto why = [&](const CheckpointOptions& options) {
    const auto refused = checkpoint_plan(options, blocks);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(refused.status().message());
  };
  EXPECT_THAT(why({.mode = "selective", .selective_ac_option = "-1"}), HasSubstr("neither \"op\" nor an integer"));
  EXPECT_THAT(why({.mode = "some"}), HasSubstr("activation_checkpoint.mode"));
  EXPECT_THAT(why({.mode = "memory_budget", .memory_budget = 1.5}), HasSubstr("memory_budget: 1.5"));
}

}  // namespace
}  // namespace titan::parallel
