// Tests the executor without a model: its stages only wait for a known time.
#include "worker/rank/runtime/engine/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common/plan/pipeline/generators.h"
#include "common/plan/pipeline/simulator.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/runtime/rank_time.h"

namespace titan::runtime {
namespace {

using pipeline::Schedule;
using testing::raise;
using testing::RankTime;
using testing::ThreadRank;
using Clock = std::chrono::steady_clock;

// Waits for the simulator's costs times `unit`, and checks the tensors that the executor passes on: an activation holds
// its stage and microbatch.
class TimedStage : public StageRunner {
 public:
  TimedStage(int index, int stages, std::chrono::microseconds unit, RankTime& time)
      : index_(index), stages_(stages), unit_(unit), time_(time) {}

  at::Tensor empty_input(const nn::MicrobatchContext&) const override { return at::empty({4}, at::kDouble); }

  at::Tensor forward(int microbatch, const nn::MicrobatchContext&, at::Tensor input) override {
    if (index_ > 0) expect(input, index_, microbatch);
    work(costs_.forward);
    if (index_ + 1 == stages_) return at::full({}, 1.5, at::kDouble);
    return message(index_ + 1, microbatch);
  }
  at::Tensor evaluate(const nn::MicrobatchContext& context, at::Tensor input) override {
    return forward(static_cast<int>(context.tokens.item<int64_t>()), context, std::move(input));
  }
  at::Tensor backward(int microbatch, at::Tensor gradient, bool last) override {
    (void)input_gradient(microbatch, std::move(gradient));
    weight_gradient(microbatch, last);
    return index_ == 0 ? at::Tensor() : message(-(index_ - 1), microbatch);
  }
  at::Tensor input_gradient(int microbatch, at::Tensor gradient) override {
    if (index_ + 1 < stages_) {
      expect(gradient, -index_, microbatch);
    } else {
      EXPECT_DOUBLE_EQ(gradient.item<double>(), 0.25);
    }
    work(costs_.input_gradient);
    return index_ == 0 ? at::Tensor() : message(-(index_ - 1), microbatch);
  }
  void weight_gradient(int, bool last) override {
    work(costs_.weight_gradient);
    EXPECT_EQ(last, ++weight_gradients_ == microbatches);
  }
  void reduce() override {
    EXPECT_EQ(weight_gradients_, microbatches);
    ++reductions;
  }

  int microbatches = 0;
  int reductions = 0;

 protected:
  void work(double cost) { time_.work(cost * static_cast<double>(unit_.count())); }

 private:
  at::Tensor message(int stage, int microbatch) const {
    return at::tensor({static_cast<double>(stage), static_cast<double>(microbatch), time_.planned, time_.overslept},
                      at::kDouble);
  }
  void expect(const at::Tensor& got, int stage, int microbatch) {
    const auto* words = got.const_data_ptr<double>();
    EXPECT_TRUE(words[0] == stage && words[1] == microbatch) << got << " is not for " << stage << ", " << microbatch;
    time_.take(words[2], words[3]);
  }

  const int index_;
  const int stages_;
  const std::chrono::microseconds unit_;
  RankTime& time_;
  const pipeline::Costs costs_;
  int weight_gradients_ = 0;
};

struct TimedRank {
  RankTime time;
  std::map<int, std::unique_ptr<TimedStage>> stages;
  std::unique_ptr<Executor> executor;

  TimedRank(const Schedule& schedule, ThreadRank& self, std::chrono::microseconds unit) {
    const comm::Group& group = self.mesh->group(mesh::Axis::kPipeline);
    std::map<int, StageRunner*> runners;
    for (const int index : schedule.stages_of(group.rank())) {
      stages[index] = std::make_unique<TimedStage>(index, schedule.stages, unit, time);
      stages[index]->microbatches = schedule.microbatches;
      runners[index] = stages[index].get();
    }
    executor = std::make_unique<Executor>(std::move(runners), &group);
  }
};

std::vector<nn::MicrobatchContext> contexts(int count) {
  std::vector<nn::MicrobatchContext> all(count);
  for (int i = 0; i < count; ++i) all[i].tokens = at::full({}, i, at::kLong);
  return all;
}

// Returns the longest time that a rank needs for one run, in units.
double measure(const Schedule& schedule, std::chrono::microseconds unit) {
  std::atomic<int64_t> longest{0};
  std::atomic<int64_t> epoch{0};  // The moment when the last rank is ready; the same for all ranks.
  testing::run_ranks({.pp = schedule.ranks}, schedule.ranks, {mesh::Axis::kPipeline, mesh::Axis::kWorld},
                     [&](ThreadRank& self) {
                       TimedRank rank(schedule, self, unit);
                       const auto microbatches = contexts(schedule.microbatches);
                       raise(epoch, Clock::now().time_since_epoch().count());
                       self.mesh->group(mesh::Axis::kWorld).barrier();
                       rank.time.epoch = Clock::time_point(Clock::duration(epoch.load()));
                       rank.executor->run(schedule, microbatches, [] { return at::scalar_tensor(4, at::kLong); });
                       self.mesh->group(mesh::Axis::kWorld).barrier();
                       raise(longest, (Clock::now() - rank.time.epoch) / std::chrono::microseconds(1));
                       for (const auto& [index, stage] : rank.stages) EXPECT_EQ(stage->reductions, 1) << index;
                     });
  return static_cast<double>(longest) / static_cast<double>(unit.count());
}

int stages_per_rank(const std::string& name) { return pipeline::find_schedule(name)->default_stages_per_rank; }

// On four ranks with eight microbatches, the ranks wait for the same share of time as in the simulator, and less with
// zero-bubble schedules than with 1F1B. A busy machine only adds time, so the best of a few runs counts, and longer
// waits make the machine matter less.
TEST(BubbleTest, MatchesTheSimulator) {
  std::map<std::string, double> bubbles;
  for (const pipeline::ScheduleKind& kind : pipeline::schedule_kinds()) {
    const Schedule schedule = pipeline::generate(kind.name, 4, stages_per_rank(kind.name), 8).value();
    const pipeline::Simulation simulated = pipeline::simulate(schedule).value();
    double busy = 0;
    for (const pipeline::RankTimeline& rank : simulated.ranks) busy += rank.busy / 4;
    const std::chrono::microseconds unit(stages_per_rank(kind.name) == 1 ? 16'000 : 8'000);
    constexpr int kAttempts = 8;
    double bubble = 1;
    for (int attempt = 0; attempt < kAttempts && bubble > simulated.bubble + 0.015; ++attempt) {
      bubble = std::min(bubble, 1 - busy / measure(schedule, unit * (1 + attempt)));
    }
    std::printf("%-22s bubble %.3f, simulated %.3f\n", kind.name.c_str(), bubble, simulated.bubble);
    EXPECT_NEAR(bubble, simulated.bubble, 0.02) << kind.name;
    bubbles[kind.name] = bubble;
  }
  for (const char* name : {"InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    EXPECT_LT(bubbles.at(name), bubbles.at("1F1B")) << name;
  }
}

// Schedules of many shapes run without waits, over memory and over sockets: every message arrives at its destination,
// and no rank blocks.
TEST(ExecutorTest, NoScheduleBlocks) {
  for (const pipeline::ScheduleKind& kind : pipeline::schedule_kinds()) {
    for (const int ranks : {2, 3, 4}) {
      for (const int microbatches : {1, 2, 4, 6, 9}) {
        const auto schedule = pipeline::generate(kind.name, ranks, kind.default_stages_per_rank, microbatches);
        if (!schedule.ok()) continue;
        measure(*schedule, std::chrono::microseconds(0));
      }
    }
  }
}

TEST(ExecutorTest, EvaluatesAndSumsTheLoss) {
  for (const pipeline::ScheduleKind& kind : pipeline::schedule_kinds()) {
    const Schedule training = pipeline::generate(kind.name, 2, kind.default_stages_per_rank, 4).value();
    const Schedule schedule = pipeline::forward_only(training, 5);
    testing::run_ranks(
        {.pp = 2}, 2, {mesh::Axis::kPipeline},
        [&](ThreadRank& self) {
          TimedRank rank(schedule, self, std::chrono::microseconds(0));
          const double loss = rank.executor->run(schedule, contexts(5)).item<double>();
          const bool has_loss = schedule.rank_of(schedule.stages - 1) == self.rank;
          EXPECT_DOUBLE_EQ(loss, has_loss ? 7.5 : 0.0);
          for (const auto& [index, stage] : rank.stages) EXPECT_EQ(stage->reductions, 0) << index;
        },
        testing::Via::kGloo);
  }
}

// If a rank ends in the middle of a run, all others notice, neighbours or not.
TEST(ExecutorTest, LostPeerIsNoticed) {
  struct Dies : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  class DyingStage : public TimedStage {
   public:
    using TimedStage::TimedStage;
    at::Tensor forward(int microbatch, const nn::MicrobatchContext& context, at::Tensor input) override {
      if (microbatch == 2) throw Dies("killed");
      return TimedStage::forward(microbatch, context, std::move(input));
    }
  };
  const Schedule schedule = pipeline::generate("1F1B", 4, 1, 8).value();
  for (const auto via : {testing::Via::kMemory, testing::Via::kGloo, testing::Via::kSharedMemory}) {
    std::atomic<int> noticed{0};
    const auto body = [&](ThreadRank& self) {
      TimedRank rank(schedule, self, std::chrono::microseconds(0));
      DyingStage dying(2, 4, std::chrono::microseconds(0), rank.time);
      dying.microbatches = 8;
      Executor executor({{2, &dying}}, &self.mesh->group(mesh::Axis::kPipeline));
      Executor& own = self.rank == 2 ? executor : *rank.executor;
      try {
        own.run(schedule, contexts(8), [] { return at::scalar_tensor(4, at::kLong); });
      } catch (const comm::PeerLost&) {
        ++noticed;
        self.mesh->abort();
        throw;
      } catch (const Dies&) {
        self.mesh->abort();
        throw;
      }
    };
    EXPECT_THROW(testing::run_ranks({.pp = 4}, 4, {mesh::Axis::kPipeline}, body, via), Dies);
    EXPECT_EQ(noticed, 3);
  }
}

}  // namespace
}  // namespace titan::runtime
