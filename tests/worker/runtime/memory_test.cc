#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>

#include "tests/worker/runtime/training_world.h"

namespace titan::runtime {
namespace {

// Counts what a rank's thread allocates through LibTorch, from outside the engine.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), current_meter};
    if (block->meter != nullptr) block->meter->add(block->bytes);
    return {block->data.get(), block, &release, c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  // Live bytes of one thread's allocations, wherever they are freed.
  struct Meter {
    void add(int64_t bytes) {
      std::lock_guard lock(mutex);
      live += bytes;
      peak = std::max(peak, live);
    }
    int64_t begin() {  // Returns the live bytes; the peak starts anew.
      std::lock_guard lock(mutex);
      peak = live;
      return live;
    }
    int64_t highest() {
      std::lock_guard lock(mutex);
      return peak;
    }

   private:
    std::mutex mutex;
    int64_t live = 0;
    int64_t peak = 0;
  };
  static inline thread_local Meter* current_meter = nullptr;

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
    Meter* meter;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    if (block->meter != nullptr) block->meter->add(-block->bytes);
    delete block;
  }

  c10::Allocator* inner_;
};

void count_allocations() {
  static CountingAllocator* allocator = [] {
    auto* counting = new CountingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(counting, /*priority=*/1);
    return counting;
  }();
  (void)allocator;
}

struct Peaks {
  int64_t evaluate = 0;
  int64_t train = 0;
};

// Bytes above the resting state (shards, gradients' shards) at the worst moment of one pass, highest over the ranks.
Peaks measure(testing::TrainingPlan plan, int world) {
  count_allocations();
  std::vector<CountingAllocator::Meter> meters(world);
  std::vector<Peaks> peaks(world);
  testing::run_ranks({}, world, {mesh::Axis::kFsdp, mesh::Axis::kReplicate}, [&](testing::ThreadRank& self) {
    CountingAllocator::current_meter = &meters[self.rank];
    auto& meter = meters[self.rank];
    {
      auto model = ShardedModel::create(model::build(plan.spec, {.seq_len = plan.seq_len}).value(), plan.sharding,
                                        *self.mesh, *self.device)
                       .value();
      model->init_weights(1);
      const auto context = testing::rows_of_step(plan, 0, 0, 1);
      for (int repeat = 0; repeat < 2; ++repeat) {  // The first pass may fill caches.
        int64_t rest = meter.begin();
        model->engine().evaluate(context);
        model->engine().release();
        peaks[self.rank].evaluate = meter.highest() - rest;
        rest = meter.begin();
        model->forget_gradients();
        model->engine().train(
            context, [] { return 8; }, true);
        model->engine().finish_step();
        peaks[self.rank].train = meter.highest() - rest;
        EXPECT_LE(meter.begin() - rest, 4096) << "a pass left memory behind";
      }
    }
    CountingAllocator::current_meter = nullptr;
  });
  Peaks highest;
  for (const Peaks& one : peaks) {
    highest.evaluate = std::max(highest.evaluate, one.evaluate);
    highest.train = std::max(highest.train, one.train);
  }
  return highest;
}

// With resharding, gathered weights never take more than two consecutive blocks' units. In the backward pass the
// block's own gradients come on top, and the reduction of the block above: pieces sent, pieces received, and their sum
// (half a block on two ranks). A rank that gathers nothing tells what activations and one block's gradients take.
// Gathering everything would take 12 blocks.
TEST(MemoryTest, AtMostTwoConsecutiveBlocksAreGathered) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 12;
  plan.spec.dim = 256;
  plan.spec.ffn_hidden = 768;
  plan.spec.head_dim = plan.spec.v_head_dim = 64;
  plan.spec.vocab_size = 64;
  plan.seq_len = 8;
  plan.global_batch = 2;
  int64_t layer = 0;
  const model::Model model = model::build(plan.spec, {.seq_len = 8}).value();
  for (const auto& parameter : model.blocks[1]->parameters()) {
    layer += parameter.shape[0] * (parameter.shape.size() > 1 ? parameter.shape[1] : 1) * 4;
  }
  for (const char* policy : {"always", "default"}) {
    for (const char* recompute : {"none", "full"}) {
      plan.sharding = {
          .precision = {at::kFloat, at::kFloat, at::kFloat}, .reshard_after_forward = policy, .ac_mode = recompute};
      const Peaks whole = measure(plan, 1);
      const Peaks split = measure(plan, 2);
      EXPECT_LE(split.evaluate, whole.evaluate + 2 * layer) << policy << " " << recompute;
      EXPECT_GE(split.evaluate, layer) << "the meter sees nothing";
      EXPECT_LE(split.train, whole.train + 4 * layer + layer / 2) << policy << " " << recompute;
    }
  }
  plan.sharding.reshard_after_forward = "never";
  EXPECT_GE(measure(plan, 2).train, 12 * layer) << "the test would not notice a model that is gathered whole";
}

// The same where the head outweighs a layer by far: its matrix is not held twice on its way out of a gather buffer.
TEST(MemoryTest, AHeavyHeadIsGatheredOnce) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 4;
  plan.spec.vocab_size = 4099;  // An uneven one; the last rank's piece is padded.
  plan.seq_len = 2;
  plan.global_batch = 2;
  plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
  int64_t layer = 0;
  const model::Model model = model::build(plan.spec, {.seq_len = 2}).value();
  for (const auto& parameter : model.blocks[1]->parameters()) {
    layer += parameter.shape[0] * (parameter.shape.size() > 1 ? parameter.shape[1] : 1) * 4;
  }
  const int64_t head = (4100 * plan.spec.dim + plan.spec.dim) * 4;
  for (const char* policy : {"always", "default"}) {
    plan.sharding.reshard_after_forward = policy;
    const Peaks split = measure(plan, 2);
    EXPECT_LE(split.evaluate, measure(plan, 1).evaluate + layer + head) << policy;
    EXPECT_GE(split.evaluate, head) << "the meter sees nothing";
  }
}

// Recomputation keeps a block's input instead of its activations.
TEST(MemoryTest, RecomputationSavesActivations) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 8;
  plan.seq_len = 64;
  plan.global_batch = 1;
  plan.sharding.ac_mode = "none";
  const int64_t none = measure(plan, 1).train;
  plan.sharding.ac_mode = "selective";
  plan.sharding.ac_option = "2";
  const int64_t half = measure(plan, 1).train;
  plan.sharding.ac_mode = "full";
  const int64_t full = measure(plan, 1).train;
  EXPECT_LT(half, none * 3 / 4);
  EXPECT_LT(full, none / 2);
}

}  // namespace
}  // namespace titan::runtime
