// From the fourth step on, a rank requests the same blocks from its allocator in every step, so an allocator that keeps
// freed memory requests none from the system. An allocator around LibTorch's observes the threads that run steps, for
// all families, kinds of mesh and modes of recomputation. The CPU's own caching allocator
// (worker/rank/runtime/memory/cpu_memory.h) is tested by its count of requests, on one rank, since several threads free
// blocks at varying times. Sizes that depend on the data are left out: packed documents, and rows that are exchanged in
// pieces of different sizes. The C++ heap, which that allocator does not see, must not grow either.

#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/numerics/small_models/small_specs.h"
#include "tests/worker/rank/runtime/small_job.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/runtime/memory/cpu_memory.h"

namespace titan::runtime {
namespace {

constexpr int kSteady = 3;  // The last step that may differ from later ones.

using Blocks = std::map<size_t, int>;  // Number of blocks by bytes.

struct Step {
  Blocks blocks;
  int64_t requested_before = 0;  // Blocks requested from malloc before the step began.
};
using Steps = std::map<int, Step>;  // From 1.

// Records what each rank's thread allocates in each step, from the start of the step's scope to the start of the next
// one's.
class StepAllocations {
 public:
  StepAllocations()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(enter).scopes({at::RecordScope::USER_SCOPE}))) {
    static Allocator* const allocator = [] {
      auto* counting = new Allocator(&cpu_memory());
      c10::SetCPUAllocator(counting, /*priority=*/1);
      return counting;
    }();
    (void)allocator;
    const std::scoped_lock lock(mutex_);
    ranks_.clear();
  }
  ~StepAllocations() { at::removeCallback(handle_); }
  StepAllocations(const StepAllocations&) = delete;
  StepAllocations& operator=(const StepAllocations&) = delete;

  // Returns one element per rank.
  static std::vector<Steps> take() {
    const std::scoped_lock lock(mutex_);
    std::vector<Steps> all;
    for (const auto& rank : ranks_) all.push_back(*rank);
    return all;
  }

 private:
  class Allocator final : public c10::Allocator {
   public:
    explicit Allocator(c10::Allocator* inner) : inner_(inner) {}
    c10::DataPtr allocate(size_t bytes) override {
      if (step_ > 0 && bytes > 0) ++(*own_)[step_].blocks[bytes];
      return inner_->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override { inner_->copy_data(to, from, bytes); }

   private:
    c10::Allocator* const inner_;
  };

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    constexpr const char* kStep = "ProfilerStep#";
    if (!absl::StartsWith(call.name(), kStep)) return nullptr;
    if (own_ == nullptr) {
      own_ = std::make_shared<Steps>();
      const std::scoped_lock lock(mutex_);
      ranks_.push_back(own_);
    }
    step_ = std::atoi(call.name() + std::strlen(kStep));
    (*own_)[step_].requested_before = cpu_memory().counts().fresh_blocks;
    return nullptr;
  }

  const at::CallbackHandle handle_;
  static inline std::mutex mutex_;
  static inline std::vector<std::shared_ptr<Steps>> ranks_;
  static inline thread_local std::shared_ptr<Steps> own_;
  static inline thread_local int step_ = 0;
};

std::string difference(const Blocks& before, const Blocks& now) {
  std::string text;
  std::map<size_t, int> more;
  for (const auto& [bytes, count] : now) more[bytes] += count;
  for (const auto& [bytes, count] : before) more[bytes] -= count;
  for (const auto& [bytes, count] : more) {
    if (count != 0) absl::StrAppend(&text, count > 0 ? " +" : " ", count, " of ", bytes, " bytes");
  }
  return text;
}

constexpr int kSteps = 6;  // The last one is logged and ends the job.

std::vector<Steps> steps_of(const std::string& words) {
  const StepAllocations allocations;
  testing::run_small_job(absl::StrCat("--model.flavor shallow --training.steps ", kSteps, " ", words));
  std::vector<Steps> ranks = StepAllocations::take();
  EXPECT_FALSE(ranks.empty()) << words;
  for (const Steps& rank : ranks) EXPECT_EQ(rank.size(), kSteps) << words;
  return ranks;
}

void expect_steady(const std::string& words) {
  for (const Steps& rank : steps_of(words)) {
    for (int step = kSteady + 1; step < kSteps; ++step)
      EXPECT_EQ(difference(rank.at(kSteady).blocks, rank.at(step).blocks), "") << words << ", step " << step;
  }
}

TEST(SteadyAllocations, AreDetected) {
  const StepAllocations allocations;
  testing::run_small_job("--model.name small_llama3 --model.flavor shallow --training.steps 2 --resources.ranks 2");
  const auto ranks = StepAllocations::take();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_FALSE(ranks[0].at(1).blocks.empty());
  EXPECT_EQ(difference({{8, 2}, {64, 1}}, {{8, 1}, {96, 3}}), " -1 of 8 bytes -1 of 64 bytes +3 of 96 bytes");
}

TEST(SteadyAllocations, OnAnyMesh) {
  const std::string degree = " --parallelism.";
  const std::vector<std::string> meshes = {
      " --resources.ranks 1",
      " --resources.ranks 2",
      " --resources.ranks 2 --training.mixed_precision_param bfloat16",
      " --resources.ranks 2" + degree + "data_parallel_replicate_degree 2",
      " --resources.ranks 2" + degree + "tensor_parallel_degree 2",
      " --resources.ranks 2" + degree + "context_parallel_degree 2",
      " --resources.ranks 2" + degree + "context_parallel_degree 2" + degree + "context_parallel_load_balancer ptrr",
      " --resources.ranks 4 --training.local_batch_size 2" + degree + "data_parallel_replicate_degree 2",
      " --resources.ranks 2" + degree + "pipeline_parallel_degree 2",
      " --resources.ranks 2" + degree + "pipeline_parallel_degree 2" + degree +
          "pipeline_parallel_schedule ZBVZeroBubble",
      " --resources.ranks 2" + degree + "expert_parallel_degree 2" + degree + "expert_parallel_dispatcher allgather",
  };
  for (const std::string& family : testing::small_families()) {
    for (const std::string& mesh : meshes) {
      const bool has_experts = family != "llama3" && family != "qwen3";
      if (absl::StrContains(mesh, "expert_parallel") && !has_experts) continue;
      expect_steady(absl::StrCat("--model.name small_", family, mesh));
    }
  }
}

// In bf16 a job on a CPU uses Titan's kernels by default, which save and allocate other tensors. On a CPU, LibTorch's
// products of all experts allocate by their number of rows, which depends on the load.
TEST(SteadyAllocations, WithAndWithoutTitansKernels) {
  for (const char* by : {"auto", "reference"}) {
    for (const std::string& family : testing::small_families()) {
      if (by == std::string("reference") && testing::small_spec(family).moe.has_value()) continue;
      for (const char* ranks : {"1", "2"}) {
        expect_steady(absl::StrCat("--model.name small_", family, " --resources.ranks ", ranks,
                                   " --training.mixed_precision_param bfloat16 --resources.kernels ", by));
      }
    }
    EXPECT_EQ(kernels::chosen_level().has_value(), by == std::string("auto") && kernels::best_level().has_value());
  }
}

// The load decides how many rows are exchanged in pieces of different sizes.
TEST(SteadyAllocations, DoNotHoldWhereSizesDependOnTheLoad) {
  const std::vector<Steps> ranks = steps_of(
      "--model.name small_deepseek_v3 --debug.seed 0 --resources.ranks 2 --parallelism.expert_parallel_degree 2");
  bool same = true;
  for (const Steps& rank : ranks) same &= difference(rank.at(kSteady).blocks, rank.at(kSteady + 1).blocks).empty();
  EXPECT_FALSE(same);
}

TEST(SteadyAllocations, InAnyModeOfRecomputation) {
  for (const std::string& family : testing::small_families()) {
    for (const char* way : {"none", "full", "selective --activation_checkpoint.selective_ac_option op",
                            "selective --activation_checkpoint.selective_ac_option 2",
                            "memory_budget --activation_checkpoint.memory_budget 0.5"})
      expect_steady(
          absl::StrCat("--model.name small_", family, " --resources.ranks 2 --activation_checkpoint.mode ", way));
  }
}

// There are enough tokens that the allocator keeps the blocks; it leaves small ones to malloc.
TEST(SteadyAllocations, RequestNothingFromMalloc) {
  const std::string large =
      " --resources.ranks 1 --training.seq_len 64 --training.local_batch_size 16"
      " --training.global_batch_size 32 --activation_checkpoint.mode ";
  for (const std::string& family : testing::small_families()) {
    for (const char* way : {"none", "full", "selective --activation_checkpoint.selective_ac_option op",
                            "none --training.mixed_precision_param bfloat16"}) {
      const std::string words = absl::StrCat("--model.name small_", family, large, way);
      const Steps steps = steps_of(words).at(0);
      EXPECT_EQ(steps.at(kSteps).requested_before, steps.at(kSteady + 1).requested_before) << words;
    }
  }
}

// Records the bytes of malloc in use, in all its arenas, when each step begins. `planted`: bytes that it leaks in each
// step, to check itself. Its own memory is reserved beforehand and does not count.
class StepHeap {
 public:
  static constexpr int kSteps = 60, kFirst = 30;  // Buffers of the first steps are still filling.

  explicit StepHeap(size_t planted = 0)
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(enter).scopes({at::RecordScope::USER_SCOPE}))) {
    planted_ = planted;
    used_.clear();
    used_.reserve(kSteps);
    kept_.reserve(kSteps);
  }
  ~StepHeap() {
    at::removeCallback(handle_);
    kept_.clear();
  }
  StepHeap(const StepHeap&) = delete;
  StepHeap& operator=(const StepHeap&) = delete;

  // Returns the median growth per step from kFirst on. Buffers that double, or that stop growing, grow in only a few of
  // the steps.
  static int64_t growth() {
    EXPECT_EQ(used_.size(), kSteps);
    if (used_.size() != kSteps) return 0;
    std::vector<int64_t> grown;
    for (size_t step = kFirst; step < used_.size(); ++step) grown.push_back(used_[step] - used_[step - 1]);
    const auto middle = grown.begin() + static_cast<int64_t>(grown.size() / 2);
    std::nth_element(grown.begin(), middle, grown.end());
    return *middle;
  }

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    if (!absl::StartsWith(call.name(), "ProfilerStep#")) return nullptr;
    if (planted_ > 0) kept_.push_back(std::make_unique<char[]>(planted_));
    const struct mallinfo2 now = mallinfo2();
    used_.push_back(static_cast<int64_t>(now.uordblks + now.hblkhd));  // hblkhd: blocks with their own pages.
    return nullptr;
  }

  const at::CallbackHandle handle_;
  static inline size_t planted_ = 0;
  static inline std::vector<int64_t> used_;
  static inline std::vector<std::unique_ptr<char[]>> kept_;
};

int64_t heap_growth(const std::string& family, size_t planted) {
  const StepHeap heap(planted);
  testing::run_small_job(absl::StrCat("--model.flavor shallow --resources.ranks 1 --model.name small_", family,
                                      " --training.steps ", StepHeap::kSteps));
  return StepHeap::growth();
}

// Limit for one rank, since several send each other blocks that are freed at varying times. Measured: 0 to 224 bytes.
constexpr int64_t kGrowth = 512;

TEST(SteadyAllocations, HeapDoesNotGrow) {
  for (const char* family : {"llama3", "deepseek_v3"}) EXPECT_LE(heap_growth(family, 0), kGrowth) << family;
}

TEST(SteadyAllocations, GrowthOfAKibibytePerStepIsDetected) { EXPECT_GT(heap_growth("llama3", 1024), kGrowth); }

}  // namespace
}  // namespace titan::runtime
