// A step never asks the device for a number, but where all ranks' reports come together at its end: on a GPU every
// such question empties the queue. Seen by what the dispatcher is asked, for all families, kinds of mesh and modes of
// recomputation.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/testing/operation_watch.h"
#include "worker/kernels/choice.h"
#include "worker/runtime/local_ranks.h"

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

// Of a job of two steps, from its first tensor to its last.
int reads_of(const std::string& words) {
  const rank_protocol::TempFolder folder;
  const std::string config = folder.file("job.toml");
  std::ofstream(config) << "";
  const std::string line = absl::StrCat(
      "--config ", config, " --job.dump_folder ", folder.file("dump"), " --experimental.custom_import ",
      std::getenv("TITAN_BIN"), "/../tests/libsmall_models.so --model.flavor packed --comm.mode local_tensor",
      " --training.seq_len 32 --training.local_batch_size 4 --training.global_batch_size 8 --metrics.log_freq 100",
      " --resources.threads_per_rank 1 --training.mixed_precision_param float32 --training.steps 2 ", words);
  const RankJob job = read_job(parse_options(absl::StrSplit(line, ' ', absl::SkipEmpty())).value()).value();
  const ScalarReads reads;
  EXPECT_EQ(run_local_ranks(job, nullptr, 0), rank_protocol::kExitFinished) << words;
  return reads.count();
}

const std::vector<std::string> kFamilies = {"llama3", "qwen3",        "qwen3_moe", "deepseek_v3",
                                            "llama4", "llama4_irope", "gpt_oss"};

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
  for (const std::string& family : kFamilies) {
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
  for (const std::string& family : kFamilies) {
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
                          "--optimizer.name Adam"}) {
    const std::string words = absl::StrCat("--model.name small_llama3 --resources.ranks 2 ", way);
    EXPECT_EQ(reads_of(words), 0) << words;
  }
}

TEST(HostReads, NoneForExpertsInOneCall) {
  EXPECT_EQ(reads_of("--model.name small_qwen3_moe --resources.ranks 2 --training.mixed_precision_param bfloat16"), 0);
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
