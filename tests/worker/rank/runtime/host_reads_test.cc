// A step never reads a value from the device, except where the reports of all ranks are combined at its end: on a GPU
// every read drains the queue. The test watches the dispatcher, for all families, kinds of mesh and modes of
// recomputation.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/numerics/small_models/small_specs.h"
#include "tests/testing/draw.h"
#include "tests/testing/operation_watch.h"
#include "tests/worker/rank/runtime/small_job.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::runtime {
namespace {

// Returns whether the operation reads values only on a CPU: a fused step reads its count, an assertion its condition, a
// grouped product its groups' ends.
bool reads_on_cpu_only(const char* name) {
  return absl::StartsWith(name, "aten::_fused_adam") || std::strcmp(name, "aten::_assert_async") == 0 ||
         std::strcmp(name, "aten::_grouped_mm") == 0;
}

// Returns whether the result's size depends on values, so that a GPU's host waits for it. Indexing by a mask calls the
// first one.
bool has_data_dependent_size(const char* name) {
  for (const char* one : {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
                          "aten::unique_consecutive", "aten::count_nonzero"}) {
    if (std::strcmp(name, one) == 0) return true;
  }
  return false;
}

// Counts the operation that Tensor::item() calls, and operations whose sizes depend on values, on any thread.
class ScalarReads : titan::testing::OperationWatch<ScalarReads> {
 public:
  ScalarReads() { count_ = 0; }
  static int count() { return count_; }

 private:
  friend OperationWatch<ScalarReads>;
  static void entered(const char* name) {
    if (reads_on_cpu_only(name)) ++inside_;
    if (inside_ == 0 && (std::strcmp(name, "aten::_local_scalar_dense") == 0 || has_data_dependent_size(name)))
      ++count_;
  }
  static void left(const char* name) {
    if (reads_on_cpu_only(name)) --inside_;
  }

  static inline std::atomic<int> count_;
  static inline thread_local int inside_ = 0;
};

// Counts how often the host reads the rows of each expert, which on a CPU dispatches no operation.
class RowReads {
 public:
  RowReads() : handle_(at::addGlobalCallback(at::RecordFunctionCallback(enter).scopes({at::RecordScope::USER_SCOPE}))) {
    count_ = 0;
  }
  ~RowReads() { at::removeCallback(handle_); }
  RowReads(const RowReads&) = delete;
  RowReads& operator=(const RowReads&) = delete;
  static int count() { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    if (std::strcmp(call.name(), nn::kReadsRows) == 0) ++count_;
    return nullptr;
  }

  const at::CallbackHandle handle_;
  static inline std::atomic<int> count_;
};

// Returns the number of reads of a job of two steps, from its first tensor to its last.
int reads_of(const std::string& words) {
  const ScalarReads reads;
  testing::run_small_job("--model.flavor shallow_packed --training.steps 2 " + words);
  return reads.count();
}

int expert_layers(const std::string& family) {
  const models::ModelSpec spec = testing::shallow(testing::small_spec(family));
  int count = 0;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) count += spec.layer_has_experts(layer) ? 1 : 0;
  return count;
}

TEST(HostReads, DetectsReads) {
  const ScalarReads reads;
  EXPECT_EQ(at::ones({1}).item<float>(), 1);
  EXPECT_EQ(reads.count(), 1);
  EXPECT_EQ(at::ones({3}).index({at::arange(3).ne(1)}).numel(), 2);
  EXPECT_EQ(at::ones({3}).nonzero().numel(), 3);
  EXPECT_GE(reads.count(), 3);
}

TEST(HostReads, NoneOnAnyMesh) {
  const std::string degree = " --parallelism.";
  const std::vector<std::string> meshes = {
      " --resources.ranks 1",
      " --resources.ranks 2",
      " --resources.ranks 2" + degree + "data_parallel_replicate_degree 2",
      " --resources.ranks 2" + degree + "tensor_parallel_degree 2",
      " --resources.ranks 2" + degree + "context_parallel_degree 2",
      " --resources.ranks 2" + degree + "context_parallel_degree 2" + degree + "context_parallel_load_balancer ptrr",
      " --resources.ranks 2" + degree + "pipeline_parallel_degree 2",
      " --resources.ranks 2" + degree + "pipeline_parallel_degree 2" + degree +
          "pipeline_parallel_schedule ZBVZeroBubble",
      " --resources.ranks 2" + degree + "expert_parallel_degree 2",
  };
  for (const std::string& family : testing::small_families()) {
    for (const std::string& mesh : meshes) {
      const bool has_experts = family != "llama3" && family != "qwen3";
      if (absl::StrContains(mesh, "expert_parallel") && !has_experts) continue;
      const std::string words = absl::StrCat("--model.name small_", family, mesh);
      EXPECT_EQ(reads_of(words), 0) << words;
    }
  }
}

TEST(HostReads, NoneForScalesOfEightBits) {
  const std::string float8 = " --model.converters quantize.linear.float8 --quantize.linear.float8.";
  const std::vector<std::string> recipes = {
      float8 + "filter_fqns output --quantize.linear.float8.enable_fsdp_float8_all_gather",
      float8 + "enable_fsdp_float8_all_gather --quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
      float8 + "recipe_name rowwise",
      float8 + "recipe_name rowwise_with_gw_hp",
      " --model.converters quantize.linear.mx",
  };
  for (const std::string& recipe : recipes) {
    for (const char* mesh : {"", " --parallelism.tensor_parallel_degree 2"}) {
      if (absl::StrContains(recipe, "mx") && mesh[0] != 0) continue;  // Half a matrix has no whole blocks of 32.
      const std::string words = absl::StrCat("--model.name small_llama3 --resources.ranks 2", mesh, recipe);
      EXPECT_EQ(reads_of(words), 0) << words;
    }
  }
}

TEST(HostReads, NoneInAnyModeOfRecomputation) {
  const std::string mode = " --resources.ranks 2 --activation_checkpoint.mode ";
  for (const std::string& family : testing::small_families()) {
    for (const char* way : {"none", "full", "selective --activation_checkpoint.selective_ac_option op",
                            "selective --activation_checkpoint.selective_ac_option 2",
                            "memory_budget --activation_checkpoint.memory_budget 0.5"}) {
      const std::string words = absl::StrCat("--model.name small_", family, mode, way);
      EXPECT_EQ(reads_of(words), 0) << words;
    }
  }
}

TEST(HostReads, NoneForTheOptimizer) {
  for (const char* way : {"--optimizer.early_step_in_backward --training.max_norm 1e9", "--training.max_norm 1e-3",
                          "--optimizer.name Adam", "--optimizer.name Muon",
                          "--optimizer.name Muon --optimizer.qk_clip 1e-3 --parallelism.context_parallel_degree 2",
                          "--optimizer.name Muon --parallelism.tensor_parallel_degree 2"}) {
    const std::string words = absl::StrCat("--model.name small_llama3 --resources.ranks 2 ", way);
    EXPECT_EQ(reads_of(words), 0) << words;
  }
}

// A validation reads only its sums, once, at its end.
TEST(HostReads, NoneForValidation) {
  for (const char* mesh :
       {"", " --parallelism.tensor_parallel_degree 2", " --parallelism.pipeline_parallel_degree 2"}) {
    const std::string words = absl::StrCat(
        "--model.name small_llama3 --resources.ranks 2 --validation.enable --validation.freq 1 --validation.steps 3"
        " --validation.local_batch_size 2 --validation.seq_len 32",
        mesh);
    EXPECT_EQ(reads_of(words), 0) << words;
  }
}

// If one call computes all experts of a layer, as on GPUs, even their numbers of rows stay on the device, unless rows
// are exchanged in pieces of different sizes.
TEST(HostReads, NoneForExpertsInOneCall) {
  const std::string bf16 =
      " --training.mixed_precision_param bfloat16 --resources.kernels reference --activation_checkpoint.mode ";
  const std::string expert_ranks = " --parallelism.expert_parallel_degree 2";
  const std::string gathers = expert_ranks + " --parallelism.expert_parallel_dispatcher allgather";
  for (const char* family : {"qwen3_moe", "deepseek_v3", "llama4", "gpt_oss"}) {
    for (const char* mode : {"none", "full", "selective --activation_checkpoint.selective_ac_option op"}) {
      for (const std::string& mesh : {std::string(" --resources.ranks 2"), " --resources.ranks 2" + gathers,
                                      " --resources.ranks 4 --parallelism.tensor_parallel_degree 2" + gathers,
                                      " --resources.ranks 4 --parallelism.pipeline_parallel_degree 2" + gathers}) {
        const RowReads rows;
        const std::string words = absl::StrCat("--model.name small_", family, mesh, bf16, mode);
        EXPECT_EQ(reads_of(words), 0) << words;
        EXPECT_EQ(rows.count(), 0) << words;
      }
    }
    // Pieces of different sizes need one read per layer, pass, microbatch and rank, and one more if the pass runs
    // again. The job has two steps on two ranks with one microbatch each.
    for (const auto& [mode, passes] : {std::pair{"none", 1}, std::pair{"full", 2}}) {
      const RowReads rows;
      const std::string words =
          absl::StrCat("--model.name small_", family, " --resources.ranks 2", expert_ranks, bf16, mode);
      EXPECT_EQ(reads_of(words), 0) << words;
      EXPECT_EQ(rows.count(), expert_layers(family) * passes * 2 * 2) << words;
    }
  }
}

// Draws combinations that the lists above leave out: families, meshes of two and four ranks, ways to recompute, types
// and kernels.
TEST(HostReads, RandomJobsReadNothingOnTheHost) {
  constexpr int kJobs = 24;
  const auto seed = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  testing::Draw draw(seed);
  const auto any = [&](const std::vector<std::string>& values) {
    return values[static_cast<size_t>(draw({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})) % values.size()];
  };
  const std::string p = " --parallelism.", tp = p + "tensor_parallel_degree 2", cp = p + "context_parallel_degree 2",
                    pp = p + "pipeline_parallel_degree 2", schedule = pp + p + "pipeline_parallel_schedule ",
                    ep = p + "expert_parallel_degree 2" + p + "expert_parallel_dispatcher allgather";
  const std::vector<std::string> meshes = {
      " --resources.ranks 2",
      " --resources.ranks 4 --training.local_batch_size 2" + p + "data_parallel_replicate_degree 2",
      " --resources.ranks 2" + schedule + "GPipe",
      " --resources.ranks 2" + schedule + "Interleaved1F1B",
      " --resources.ranks 2" + schedule + "DualPipeV",
      " --resources.ranks 2" + schedule + "ZBVZeroBubble",
      " --resources.ranks 2" + tp + p + "enable_async_tensor_parallel",
      " --resources.ranks 2" + cp + p + "context_parallel_rotate_method allgather",
      " --resources.ranks 2" + cp + p + "context_parallel_rotate_method alltoall",
      " --resources.ranks 2 --training.enable_cpu_offload",
      " --resources.ranks 4" + tp + ep + p + "expert_tensor_parallel_degree 2",
  };
  for (int job = 0; job < kJobs; ++job) {
    const std::string family = any(testing::small_families());
    std::string mesh = any(meshes);
    const bool has_experts = testing::small_spec(family).moe.has_value();
    if (absl::StrContains(mesh, "expert_parallel") && !has_experts) mesh = meshes[0];
    const std::string way = any({"none", "full", "selective --activation_checkpoint.selective_ac_option op",
                                 "selective --activation_checkpoint.selective_ac_option 2",
                                 "memory_budget --activation_checkpoint.memory_budget 0.5"});
    const std::string type = any({"float32", "bfloat16"}), by = any({"reference", "auto"});
    const std::string words = absl::StrCat("--model.name small_", family, mesh, " --activation_checkpoint.mode ", way,
                                           " --training.mixed_precision_param ", type, " --resources.kernels ", by);
    EXPECT_EQ(reads_of(words), 0) << words << ", seed " << seed;
  }
}

TEST(HostReads, NoneByTitansKernels) {
  ASSERT_TRUE(kernels::choose("auto"));
  for (const char* mesh : {"", " --parallelism.tensor_parallel_degree 2"}) {
    const std::string words =
        absl::StrCat("--model.name small_llama3 --resources.ranks 2 --training.mixed_precision_param bfloat16", mesh);
    EXPECT_EQ(reads_of(words), 0) << words;
  }
  ASSERT_TRUE(kernels::choose("reference"));
}

}  // namespace
}  // namespace titan::runtime
