// Tests the two halves of a pair: what overlap gains, that all ranks keep one order of collectives, and what happens if
// a half fails.
#include "worker/rank/runtime/engine/pairs.h"

#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>

#include <map>
#include <random>

#include "tests/worker/rank/comm/hooked_ranks.h"
#include "tests/worker/rank/model/testing.h"
#include "tests/worker/rank/runtime/rank_time.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/comm/turns.h"

// Makes LibTorch start a thread for the backward nodes of each "device", as it does for CUDA's.
C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1>)

namespace titan::runtime {
namespace {

using testing::Hook;
using testing::HookedCall;
using testing::RankTime;
using testing::ThreadRank;
using Clock = std::chrono::steady_clock;

struct Cause : std::runtime_error {
  using std::runtime_error::runtime_error;
};

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// Whichever half fails, and wherever, the other half stops at its next exchange at the latest, and the caller gets the
// cause.
TEST(PairRunnerTest, TheFirstErrorStopsTheOtherHalf) {
  constexpr int kExchanges = 6;
  PairRunner runner;
  for (const int failing : {0, 1}) {
    for (int fails_at = 0; fails_at <= kExchanges; ++fails_at) {
      int passed[2] = {0, 0};
      bool finished[2] = {false, false};
      const auto half = [&](int index) {
        return [&, index] {
          for (int i = 0; i <= kExchanges; ++i) {
            if (index == failing && i == fails_at) throw Cause("half " + std::to_string(index));
            if (i == kExchanges) break;
            comm::Turns::pass();
            ++passed[index];
          }
          finished[index] = true;
        };
      };
      try {
        runner.run(half(0), half(1));
        FAIL() << "nothing was thrown";
      } catch (const Cause& cause) {
        EXPECT_EQ(cause.what(), "half " + std::to_string(failing));
      }
      EXPECT_EQ(passed[failing], fails_at);
      EXPECT_LE(passed[1 - failing], fails_at + 1);
      EXPECT_FALSE(finished[1 - failing] && fails_at < kExchanges - 1);
    }
  }
  int ran = 0;
  runner.run([&] { ++ran; }, [&] { ++ran; });  // The runner itself stays usable.
  EXPECT_EQ(ran, 2);
}

// Exchanges rows among the ranks of a pair's group. `elements` encodes what this rank believes it does.
void exchange(const comm::Group& group, int64_t elements) {
  at::Tensor rows = at::ones({elements * group.size()});
  group.all_to_all(at::empty_like(rows), rows).wait();
}

// A backward node of rank `device`, which runs on LibTorch's thread for that device. Its tensors do not exist.
class DeviceNode : public torch::autograd::Node {
 public:
  DeviceNode(int device, std::function<void()> work) : work_(std::move(work)) {
    const auto options =
        at::TensorOptions(at::kFloat).device(at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(device)));
    add_input_metadata(options, c10::SymIntArrayRef{}, /*is_tensor_subclass=*/false, /*is_nested=*/false, at::kFloat);
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    work_();
    return torch::autograd::variable_list(num_outputs());
  }

 private:
  const std::function<void()> work_;
};

// The root of a backward pass, on the caller's thread.
struct RootNode : torch::autograd::Node {
  RootNode() { add_input_metadata(at::zeros({})); }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    return torch::autograd::variable_list(num_outputs());
  }
};

// Runs the works one after the other as backward nodes of a device.
void run_backward(int device, const std::vector<std::function<void()>>& works) {
  std::shared_ptr<torch::autograd::Node> below;
  const auto put_on_top = [&](std::shared_ptr<torch::autograd::Node> node) {
    if (below) node->add_next_edge({below, 0});
    below = std::move(node);
  };
  for (size_t i = works.size(); i-- > 0;) put_on_top(std::make_shared<DeviceNode>(device, works[i]));
  put_on_top(std::make_shared<RootNode>());
  torch::autograd::Engine::get_default_engine().execute({torch::autograd::Edge(below, 0)}, {at::ones({})},
                                                        /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

// On a GPU the backward pass runs on autograd's own thread, which still belongs to its half. The halves alternate at
// every exchange, in one order on both ranks, whatever the threads' timing is.
TEST(PairRunnerTest, BackwardNodesOfADeviceThreadAlternate) {
  constexpr int kExchanges = 5;
  std::vector<std::string> order[2];
  std::atomic<int> on_other_threads{0};
  const auto failures =
      testing::run_hooked_ranks({.dp_shard = 2}, {mesh::Axis::kFsdp}, {Hook{}, Hook{}}, [&](ThreadRank& self) {
        const comm::Group& group = self.mesh->group(mesh::Axis::kFsdp);
        std::mt19937 random(self.rank);
        const auto step = [&, &log = order[self.rank]](const std::string& half, int i) {
          log.push_back(half + std::to_string(i));
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
          exchange(group, (half == "F" ? 10 : 100) + i);
        };
        PairRunner runner;
        runner.run(
            [&] {
              for (int i = 0; i < kExchanges; ++i) step("F", i);
            },
            [&] {
              std::vector<std::function<void()>> works;
              for (int i = 0; i < kExchanges; ++i) {
                works.push_back([&, i, caller = std::this_thread::get_id()] {
                  on_other_threads += std::this_thread::get_id() != caller;
                  step("B", i);
                });
              }
              run_backward(self.rank, works);
            });
      });
  for (const auto& failure : failures) EXPECT_FALSE(failure);
  EXPECT_EQ(on_other_threads, 2 * kExchanges);
  const std::vector<std::string> turns{"F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3", "F4", "B4"};
  EXPECT_EQ(order[0], turns);
  EXPECT_EQ(order[1], turns);
}

// A failure on autograd's thread stops the forward half, and a failure of the forward half stops autograd's thread. The
// other rank learns of either.
TEST(PairRunnerTest, FailuresCrossAutogradsThreads) {
  for (const std::string failing : {"F", "B"}) {
    std::atomic<int> stopped{0};
    const auto began = Clock::now();
    const auto failures =
        testing::run_hooked_ranks({.dp_shard = 2}, {mesh::Axis::kFsdp}, {Hook{}, Hook{}}, [&](ThreadRank& self) {
          const comm::Group& group = self.mesh->group(mesh::Axis::kFsdp);
          const auto step = [&](const std::string& half, int i) {
            if (self.rank == 1 && half == failing && i == 2) throw Cause(half);
            exchange(group, 1 + i);
          };
          const auto all_steps = [&](const std::string& half) {
            std::vector<std::function<void()>> works;
            for (int i = 0; i < 6; ++i) works.push_back([&step, half, i] { step(half, i); });
            return works;
          };
          const auto count_stops = [&](const std::function<void()>& half) {
            return [&stopped, half] {
              try {
                half();
              } catch (const comm::Turns::Stopped&) {
                ++stopped;
                throw;
              }
            };
          };
          PairRunner runner;
          runner.run(count_stops([&] {
                       for (const auto& work : all_steps("F")) work();
                     }),
                     count_stops([&] { run_backward(self.rank, all_steps("B")); }));
        });
    EXPECT_LT(seconds_since(began), 5) << failing;  // The groups' timeout is 30 s.
    ASSERT_TRUE(failures[0] && failures[1]);
    EXPECT_THROW(std::rethrow_exception(failures[0]), comm::PeerLost);
    EXPECT_THROW(std::rethrow_exception(failures[1]), Cause);
    EXPECT_EQ(stopped, 2) << failing;
  }
}

// A stage whose passes compute and exchange tokens in rounds, with times in microseconds. Messages contain the time at
// which they were sent.
class ExchangingStage : public StageRunner {
 public:
  static constexpr int kRounds = 4;
  static constexpr double kForward = 4'000, kBackward = 8'000;  // Times of one round.
  static constexpr double kTravel = 4'000;

  ExchangingStage(int index, int stages, const comm::Group& experts, RankTime& time, double scale)
      : index_(index), stages_(stages), experts_(experts), time_(time), scale_(scale) {}

  at::Tensor empty_input(const nn::MicrobatchContext&) const override { return at::empty({2}, at::kDouble); }
  at::Tensor forward(int, const nn::MicrobatchContext&, at::Tensor input) override {
    if (index_ > 0) take(input);
    rounds(kForward);
    return index_ + 1 == stages_ ? at::zeros({}, at::kDouble) : stamp();
  }
  at::Tensor evaluate(const nn::MicrobatchContext& context, at::Tensor input) override {
    return forward(0, context, std::move(input));
  }
  at::Tensor backward(int, at::Tensor gradient, bool) override {
    if (index_ + 1 < stages_) take(gradient);
    rounds(kBackward);
    return stamp();
  }
  at::Tensor input_gradient(int, at::Tensor gradient) override {
    if (index_ + 1 < stages_) take(gradient);
    rounds(kBackward / 2);
    return stamp();
  }
  void weight_gradient(int, bool) override { time_.work(scale_ * kRounds * kBackward / 2); }
  void reduce() override {}

 private:
  at::Tensor stamp() const { return at::tensor({time_.planned, time_.overslept}, at::kDouble); }
  void take(const at::Tensor& stamp) {
    time_.take(stamp.const_data_ptr<double>()[0], stamp.const_data_ptr<double>()[1]);
  }
  void rounds(double compute) {
    for (int i = 0; i < kRounds; ++i) {
      time_.work(scale_ * compute);
      const at::Tensor sent = stamp().repeat({experts_.size(), 1});
      at::Tensor came = at::empty_like(sent);
      experts_.all_to_all(came, sent).wait();
      const double last = came.select(1, 0).max().item<double>();
      time_.overslept = std::max(time_.overslept, came.select(1, 1).max().item<double>());
      time_.arrive(last + scale_ * kTravel);
    }
  }

  const int index_, stages_;
  const comm::Group& experts_;
  RankTime& time_;
  const double scale_;
};

// Returns the longest time that a rank needs for one run, in microseconds. Every wait is `scale` times as long.
double time_of_run(const pipeline::Schedule& schedule, bool overlap, double scale) {
  std::atomic<int64_t> epoch{0}, longest{0};
  testing::run_ranks({.pp = schedule.ranks, .dp_shard = 2, .ep = 2}, 2 * schedule.ranks,
                     {mesh::Axis::kPipeline, mesh::Axis::kExpert, mesh::Axis::kWorld}, [&](ThreadRank& self) {
                       const comm::Group& group = self.mesh->group(mesh::Axis::kPipeline);
                       RankTime time;
                       std::map<int, std::unique_ptr<ExchangingStage>> stages;
                       std::map<int, StageRunner*> runners;
                       for (const int index : schedule.stages_of(group.rank())) {
                         stages[index] = std::make_unique<ExchangingStage>(
                             index, schedule.stages, self.mesh->group(mesh::Axis::kExpert), time, scale);
                         runners[index] = stages[index].get();
                       }
                       Executor executor(runners, &group);
                       if (overlap) executor.overlap_pairs();
                       std::vector<nn::MicrobatchContext> microbatches(schedule.microbatches);
                       for (auto& context : microbatches) context.tokens = at::zeros({1}, at::kLong);
                       testing::raise(epoch, Clock::now().time_since_epoch().count());
                       self.mesh->group(mesh::Axis::kWorld).barrier();
                       time.epoch = Clock::time_point(Clock::duration(epoch.load()));
                       executor.run(schedule, microbatches, [] { return at::scalar_tensor(1, at::kLong); });
                       self.mesh->group(mesh::Axis::kWorld).barrier();
                       testing::raise(longest, static_cast<int64_t>(time.now()));
                     });
  return static_cast<double>(longest) / scale;
}

// Each exchange except a pair's last one overlaps with the other half's computation, which shortens the step by as
// much, since all ranks run their pairs at the same time. A busy machine only adds time, so the best of a few runs
// counts, and longer waits are less sensitive to it.
TEST(PairOverlapTest, OverlapsExchangesWithTheOtherHalf) {
  const pipeline::Schedule schedule = pipeline::generate("DualPipeV", 2, 2, 8).value();
  ASSERT_TRUE(pairs_can_overlap(schedule));
  int pairs = 0;
  for (const pipeline::ScheduleStep& step : schedule.steps[0]) pairs += step.actions.size() == 2;
  ASSERT_GE(pairs, 4);
  const double hidden = pairs * (2 * ExchangingStage::kRounds - 1) * ExchangingStage::kTravel;
  double plain = 1e12, overlapped = 1e12;
  for (int attempt = 1; attempt <= 10 && std::abs(plain - overlapped - hidden) > 0.05 * hidden; ++attempt) {
    plain = std::min(plain, time_of_run(schedule, /*overlap=*/false, attempt));
    overlapped = std::min(overlapped, time_of_run(schedule, /*overlap=*/true, attempt));
  }
  std::printf("%d pairs: %.1f ms in sequence, %.1f ms alternating: %.1f ms less, %.1f ms of exchanges are hidden\n",
              pairs, plain / 1e3, overlapped / 1e3, (plain - overlapped) / 1e3, hidden / 1e3);
  EXPECT_NEAR(plain - overlapped, hidden, 0.1 * hidden);
}

// Collectives that a rank issued, by group.
using Orders = std::map<std::string, std::vector<std::string>>;

// Two stages have their experts on two ranks each. With alternating halves and random delays at every operation, the
// members of each group issue the same collectives in the same order, and the numbers have the bits of a run that
// executes one half after the other.
TEST(PairOverlapTest, AllRanksKeepOneOrderOfCollectives) {
  testing::TrainingPlan plan;
  plan.spec = testing::small_spec("qwen3", "debugmodel_moe");
  plan.spec.n_layers = 4;
  plan.schedule = "DualPipeV";
  plan.global_batch = 8;
  plan.seq_len = 8;
  plan.steps = 1;
  plan.pipeline_microbatches = 4;
  const mesh::Degrees degrees{.pp = 2, .dp_shard = 2, .ep = 2};
  const auto reference = testing::train_world(plan, degrees, 4);
  plan.overlap_pairs = true;
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::vector<Orders> orders(4);
    std::vector<Hook> hooks(4);
    for (unsigned rank = 0; rank < 4; ++rank) {
      hooks[rank].issues = [&own = orders[rank],
                            random = std::mt19937(100 * seed + rank)](const HookedCall& call) mutable {
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        if (call.operation == "send" || call.operation == "recv") return;
        own[call.group].push_back(call.operation + " " + std::to_string(call.bytes));
      };
    }
    std::vector<testing::RankOutcome> outcomes(4);
    const auto failures = testing::run_hooked_ranks(degrees, testing::every_axis(), hooks, [&](ThreadRank& self) {
      outcomes[self.rank] = testing::train_rank(plan, self);
    });
    std::map<std::string, std::vector<std::string>> agreed;
    size_t exchanges = 0;
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_FALSE(failures[rank]) << rank;
      testing::expect_same_bits(reference[rank], outcomes[rank]);
      for (const auto& [group, order] : orders[rank]) {
        const auto [first, is_new] = agreed.emplace(group, order);
        if (!is_new) {
          EXPECT_EQ(first->second, order) << group << ", seed " << seed;
        }
        for (const std::string& call : order) exchanges += call.starts_with("all_to_all");
      }
    }
    EXPECT_GT(exchanges, 100U);
  }
}

}  // namespace
}  // namespace titan::runtime
