// A step never asks the device for a number, but where all ranks' reports come together at its end: on a GPU every
// such question empties the queue. Seen by what the dispatcher is asked, for all families, kinds of mesh and modes of
// recomputation.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/numerics/small_models/small_specs.h"
#include "tests/testing/operation_watch.h"
#include "tests/worker/runtime/small_job.h"
#include "worker/kernels/choice.h"
#include "worker/nn/row_groups.h"

namespace titan::runtime {
namespace {

// Of LibTorch's operations these ask on a CPU only: a fused step for its count, an assertion for its condition, a
// product of groups for their ends.
bool asks_on_cpu_only(const char* name) {
  return absl::StartsWith(name, "aten::_fused_adam") || std::strcmp(name, "aten::_assert_async") == 0 ||
         std::strcmp(name, "aten::_grouped_mm") == 0;
}

// Counts what Tensor::item() comes down to, on any thread.
class ScalarReads : titan::testing::OperationWatch<ScalarReads> {
 public:
  ScalarReads() { count_ = 0; }
  static int count() { return count_; }

 private:
  friend OperationWatch<ScalarReads>;
  static void entered(const char* name) {
    if (asks_on_cpu_only(name)) ++inside_;
    if (inside_ == 0 && std::strcmp(name, "aten::_local_scalar_dense") == 0) ++count_;
  }
  static void left(const char* name) {
    if (asks_on_cpu_only(name)) --inside_;
  }

  static inline std::atomic<int> count_;
  static inline thread_local int inside_ = 0;
};

// Counts where the host reads the rows of each expert, which on a CPU is no operation.
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

// Of a job of two steps, from its first tensor to its last.
int reads_of(const std::string& words) {
  const ScalarReads reads;
  testing::run_small_job("--model.flavor packed --training.steps 2 " + words);
  return reads.count();
}

TEST(HostReads, AreSeen) {
  const ScalarReads reads;
  EXPECT_EQ(at::ones({1}).item<float>(), 1);
  EXPECT_EQ(reads.count(), 1);
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
                          "--optimizer.name Muon --parallelism.tensor_parallel_degree 2"}) {
    const std::string words = absl::StrCat("--model.name small_llama3 --resources.ranks 2 ", way);
    EXPECT_EQ(reads_of(words), 0) << words;
  }
}

// Where one call takes all experts of a layer, as on GPUs, even how many rows they have stays on the device, unless
// rows are exchanged in pieces of their own sizes.
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
    const RowReads rows;
    EXPECT_EQ(reads_of(absl::StrCat("--model.name small_", family, " --resources.ranks 2", expert_ranks, bf16, "none")),
              0);
    EXPECT_GT(rows.count(), 0) << family;
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
