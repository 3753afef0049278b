// The failure matrix of the 4D engine: whatever operation or piece of work of a step fails, on whatever rank, every
// other rank ends with an error within seconds, no thread is left over, and the cause can be distinguished from its
// effects.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <random>

#include "tests/worker/rank/comm/hooked_ranks.h"
#include "tests/worker/rank/model/testing.h"
#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

using testing::Hook;
using testing::HookedCall;
using testing::ThreadRank;
using testing::TrainingPlan;
using Clock = std::chrono::steady_clock;

struct Injected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Shape {
  std::string name;
  mesh::Degrees degrees;
  int world = 4;
  TrainingPlan plan;
  std::vector<std::string> kinds;  // Prefixes of operations that some rank must run in its step.
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

TrainingPlan small_plan(const std::string& family, const std::string& flavor) {
  TrainingPlan plan;
  plan.spec = testing::small_spec(family, flavor);
  plan.spec.n_layers = 4;
  plan.seq_len = 8;
  plan.global_batch = 8;
  plan.pipeline_microbatches = 4;
  return plan;
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  all.push_back({"StagesAndTensor", {.pp = 2, .dp_shard = 1, .tp = 2}, 4, small_plan("llama3", "1B")});
  all.back().plan.schedule = "ZBVZeroBubble";
  all.back().kinds = {"send of ", "recv of ", "all_gather", "reduce_scatter", "all_reduce"};
  all.push_back(
      {"StagesAndExpertsAlternating", {.pp = 2, .dp_shard = 2, .ep = 2}, 4, small_plan("qwen3", "debugmodel_moe")});
  all.back().plan.schedule = "DualPipeV";
  all.back().plan.overlap_pairs = true;
  all.back().kinds = {"all_to_all", "send of ", "recv of ", "all_gather", "reduce_scatter"};
  all.push_back({"ShardsAndTensorWithEarlySteps", {.dp_shard = 2, .tp = 2}, 4, small_plan("llama3", "8B")});
  all.back().plan.sharding.early_step = true;
  all.back().kinds = {"early step", "all_gather", "reduce_scatter", "all_reduce"};
  // The embedding and the head share a matrix: the pipeline's ends sum its gradients, 3840 bytes of each shard.
  all.push_back({"StagesAndContext", {.pp = 2, .dp_shard = 1, .cp = 2}, 4, small_plan("llama3", "1B")});
  all.back().kinds = {"send of 3840 bytes", "send of 1536 bytes", "recv of ", "all_gather", "optimizer"};
  return all;
}

enum class FaultKind {
  kThrows,
  kVanishes,  // Ends without a report.
  kHangs,     // Does nothing until the others have ended.
};

// A fault that rank `rank` has the `number`th time that it does `kind`.
struct Fault {
  int rank = -1;
  std::string kind;
  int number = 0;
  FaultKind effect = FaultKind::kThrows;
};

// Counts a rank's operations, by kind and in total, and triggers the fault at the right one.
class OperationCounter {
 public:
  OperationCounter(int rank, const Fault& fault, std::function<void()> hang)
      : fault_(fault.rank == rank ? fault : Fault{}), hang_(std::move(hang)) {}

  void add(const std::string& kind) {
    for (const std::string& name : {kind, std::string("anything")}) {
      const int number = counts_[name]++;
      if (name != fault_.kind || number != fault_.number) continue;
      if (fault_.effect == FaultKind::kHangs) hang_();
      if (fault_.effect != FaultKind::kThrows) throw testing::SilentExit();
      throw Injected("injected into " + kind);
    }
  }
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  const Fault fault_;
  const std::function<void()> hang_;
  std::map<std::string, int> counts_;  // The halves of a pair alternate.
};

// Runs a step and a validation as the trainer does.
void train(const TrainingPlan& plan, ThreadRank& self, OperationCounter& counters) {
  testing::RankModel model = testing::build_rank(plan, self);
  model.executor = std::make_unique<Executor>(model.sharded->stages(), &self.mesh->group(mesh::Axis::kPipeline),
                                              [&](const pipeline::Action& action) {
                                                counters.add("work " + std::to_string(static_cast<int>(action.work)) +
                                                             " of stage " + std::to_string(action.stage));
                                              });
  if (plan.overlap_pairs) model.executor->overlap_pairs();
  model.sharded->init_weights(7);
  auto optimizer = optim::make_optimizer({}, model.sharded->optimizer_slots());
  if (plan.sharding.early_step) {
    model.sharded->update_early([&](const parallel::ShardUnit&, size_t first, size_t count) {
      counters.add("early step");
      optimizer->step_slots(first, count, 1e-2);
    });
    optimizer->begin_step();
  }
  at::Tensor loss = testing::forward_backward(plan, *self.mesh, model, 0);
  self.mesh->group(mesh::Axis::kWorld).all_reduce(loss).wait();
  counters.add("optimizer");
  if (!plan.sharding.early_step) optimizer->step(1e-2);
  (void)testing::evaluate(plan, *self.mesh, model);
}

// The groups' timeout if one rank hangs: far more than a healthy rank needs until its next operation on a busy machine.
constexpr std::chrono::seconds kTimeout{5};

struct Outcome {
  std::vector<std::exception_ptr> failures;
  std::vector<std::map<std::string, int>> counts;
  double seconds = 0;
};

Outcome run(const Shape& shape, const Fault& fault) {
  std::promise<void> all_ended;
  std::shared_future<void> others_ended = all_ended.get_future().share();
  std::atomic<int> running{shape.world - 1};
  std::vector<OperationCounter> counters;
  for (int rank = 0; rank < shape.world; ++rank) counters.emplace_back(rank, fault, [=] { others_ended.wait(); });
  std::vector<Hook> hooks(shape.world);
  for (int rank = 0; rank < shape.world; ++rank) {
    hooks[rank].issues = [&own = counters[rank]](const HookedCall& call) {
      own.add(call.operation + " of " + std::to_string(call.bytes) + " bytes");
    };
  }
  const auto body = [&](ThreadRank& self) {
    if (fault.effect == FaultKind::kHangs) self.mesh->set_timeout(kTimeout);
    try {
      train(shape.plan, self, counters[self.rank]);
    } catch (...) {
      if (self.rank != fault.rank && --running == 0) all_ended.set_value();
      throw;
    }
  };
  Outcome outcome;
  const auto began = Clock::now();
  outcome.failures = testing::run_hooked_ranks(shape.degrees, testing::every_axis(), hooks, body);
  outcome.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  for (const OperationCounter& own : counters) outcome.counts.push_back(own.counts());
  return outcome;
}

int threads_of_this_process() {
  int count = 0;
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

// Waits until `holds` is true of the number of threads, for at most 5 s: a joined thread is still listed for a moment.
template <typename Predicate>
int threads_once(const Predicate& holds) {
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  int count = threads_of_this_process();
  while (!holds(count) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    count = threads_of_this_process();
  }
  return count;
}

// Returns the number of threads once it has not changed for 0.2 s.
int settled_threads() {
  int before = 0, unchanged = 0;
  return threads_once([&](int count) {
    unchanged = count == before ? unchanged + 1 : 0;
    before = count;
    return unchanged == 20;
  });
}

constexpr const char* kEffects[] = {" throws", " is gone", " hangs"};

void expect_all_end(const Shape& shape, const Fault& fault) {
  SCOPED_TRACE("rank " + std::to_string(fault.rank) + kEffects[static_cast<int>(fault.effect)] + " in " + fault.kind +
               ", number " + std::to_string(fault.number));
  const Outcome outcome = run(shape, fault);
  EXPECT_LT(outcome.seconds, 20);  // The groups' timeout is 30 s.
  for (int rank = 0; rank < shape.world; ++rank) {
    ASSERT_TRUE(outcome.failures[rank]) << "rank " << rank << " noticed nothing";
    try {
      std::rethrow_exception(outcome.failures[rank]);
    } catch (const Injected& own) {
      EXPECT_EQ(rank, fault.rank) << own.what();
    } catch (const testing::SilentExit&) {
      EXPECT_EQ(rank, fault.rank);
    } catch (const comm::PeerLost& lost) {
      EXPECT_NE(rank, fault.rank) << lost.what();
      const std::string words = lost.what();
      if (fault.effect == FaultKind::kThrows) {
        EXPECT_NE(words.find("rank " + std::to_string(fault.rank) + " failed: injected"), std::string::npos) << words;
      }
    } catch (const std::exception& other) {
      ADD_FAILURE() << "rank " << rank << ": " << comm::describe(other);
    }
  }
}

class FailureMatrixTest : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Meshes, FailureMatrixTest, ::testing::ValuesIn(shapes()),
                         [](const auto& info) { return info.param.name; });

// Fails every kind of work and of operation at least once, then random ones.
TEST_P(FailureMatrixTest, EveryRankEndsWhereverOneFails) {
  const Shape& shape = GetParam();
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Outcome healthy = run(shape, {});
  for (const auto& failure : healthy.failures) ASSERT_FALSE(failure);
  const int threads = settled_threads();

  int cases = 0;
  const auto strike = [&](int rank, const std::string& kind, FaultKind effect) {
    const int number = static_cast<int>(random() % healthy.counts[rank].at(kind));
    expect_all_end(shape, {rank, kind, number, effect});
    ++cases;
  };
  std::set<std::string> seen;
  for (int rank = 0; rank < shape.world; ++rank) {
    for (const auto& [kind, count] : healthy.counts[rank]) {
      if (kind == "anything" || !seen.insert(kind).second) continue;
      strike(rank, kind, FaultKind::kThrows);
      strike(rank, kind, FaultKind::kVanishes);
    }
  }
  for (const std::string& kind : shape.kinds) {
    EXPECT_TRUE(std::ranges::any_of(seen, [&](const std::string& one) { return one.starts_with(kind); })) << kind;
  }
  const auto anywhere = [&] { return static_cast<int>(random() % shape.world); };
  for (int i = 0; i < 40; ++i) strike(anywhere(), "anything", i % 3 == 0 ? FaultKind::kVanishes : FaultKind::kThrows);
  for (int i = 0; i < 2; ++i) strike(anywhere(), "anything", FaultKind::kHangs);
  EXPECT_LE(threads_once([&](int count) { return count <= threads; }), threads);
  std::printf("%d failures of %zu kinds\n", cases, seen.size());
}

}  // namespace
}  // namespace titan::runtime
