// Counts a step's host operations with [compile], on a CPU that stands in for a GPU: rows by the bodies of the GPU's
// kernels, layers' passes as graphs (tests/worker/rank/runtime/recorded_graphs.h), attention and products by LibTorch's
// operations for the CPU.
//   recorded_calls CASE_FOLDER...
// Reads only the model of each case.json and draws its own weights. Skips cases with rows of documents: their attention
// is not in a graph, and a CPU lacks the single call that a GPU uses for it. Prints one JSON line per case; exits with
// 1 if graphs gave other bits than their operations.
//
// It counts one forward and backward pass by the engine on one rank, from tokens to gradient shards: calls of
// LibTorch's operations and of Titan's kernels outside the graphs, and one for each replay. So conversions of mixed
// precision count, and a graph's launch costs the same as an operation's. The device's work for a graph does not count:
// `recorded` is the number of operations in the graphs. A GPU has one call for windows and chunks where a CPU has
// several; they are in graphs here.

#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/plan/models/registry.h"
#include "nlohmann/json.hpp"
#include "tests/numerics/spec_changes.h"
#include "tests/testing/call_counter.h"
#include "tests/worker/rank/runtime/recorded_graphs.h"
#include "tests/worker/rank/runtime/recorded_kernels.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/kernels/choice.h"

namespace titan::testing {
namespace {

constexpr int64_t kRows = 4, kSeqLen = 40;  // The same as in tests/peer/oracle_models.py.
constexpr int kSteps = 5;                   // Two without graphs, one captured, two replayed.

struct Counted {
  int64_t calls = 0;    // Calls of the last step.
  int64_t replays = 0;  // Replays among these calls.
  int recorded = 0;
  int layers = 0;
  bool same_bits = true;
};

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(file);
}

// Repeats the same step, without an optimizer.
class Rank {
 public:
  Rank(const TrainingPlan& plan, ThreadRank& self) : mesh_(*self.mesh), model_(build_rank(plan, self)) {
    model_.sharded->init_weights(7);
    microbatches_ = microbatches_of_run(plan, mesh_, 0, 0, kRows, 1);
    tokens_ = nn::count_valid(microbatches_[0].labels).item<int64_t>();
  }

  // Returns the calls of one step, except those of kernels outside graphs.
  int64_t step() {
    model_.sharded->reset_gradients();
    const CallCounter counter;
    loss_ =
        model_.executor->run(model_.schedule, microbatches_, [this] { return at::scalar_tensor(tokens_, at::kLong); });
    model_.sharded->finish_step();
    return counter.count();
  }

  std::vector<at::Tensor> outcome() const {
    std::vector<at::Tensor> all{loss_.clone()};
    for (const at::Tensor& gradient : model_.sharded->gradients()) all.push_back(gradient.clone());
    return all;
  }

 private:
  const comm::DeviceMesh& mesh_;
  RankModel model_;
  std::vector<nn::MicrobatchContext> microbatches_;
  int64_t tokens_ = 0;
  at::Tensor loss_;
};

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return x.equal(y); });
}

Counted count(const models::ModelSpec& spec) {
  TrainingPlan plan;
  plan.spec = spec;
  plan.global_batch = kRows;
  plan.seq_len = kSeqLen;
  plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
  plan.sharding.graphs = {.wanted = true, .say = [](const std::string& text) { std::cerr << text << std::endl; }};
  const RecordedKernels kernels;
  kernels::choose_on_device(&kernels, {.model = true, .loss = true});
  const auto counts = std::make_shared<GraphCounts>();
  ThreadWorld world;
  world.make_device = [&](int, const std::shared_ptr<comm::LocalHub>& hub) {
    return std::make_unique<RecordingDevice>(comm::make_local_device(hub), counts);
  };
  Counted counted;
  counted.layers = static_cast<int>(spec.n_layers);
  rethrow_cause(run_world(world, [&](ThreadRank& self) {
    Rank rank(plan, self);
    std::vector<at::Tensor> first;
    for (int step = 0; step < kSteps; ++step) {
      const int64_t launches = kernels.launches(), replays = counts->replays;
      counted.calls = rank.step() + kernels.launches() - launches;
      counted.replays = counts->replays - replays;
      if (step == 0) first = rank.outcome();
      counted.same_bits &= same_bits(first, rank.outcome());
    }
  }));
  kernels::choose_on_device(nullptr, {});
  counted.recorded = counts->recorded;
  return counted;
}

bool report(const std::string& folder) {
  const nlohmann::json about = read_json(folder + "/case.json");
  if (!about.at("document_end").is_null()) return true;
  models::ModelSpec spec = models::find(about.at("family"), about.at("flavor")).value();
  change_spec(spec, about.at("spec"));
  spec.mask = models::Mask::kCausal;
  const Counted counted = count(spec);
  const bool good = counted.same_bits && counted.replays == 2 * counted.layers;
  std::cout << nlohmann::json{{"case", about.at("case")},
                              {"check", "calls with compile"},
                              {"good", good},
                              {"same_bits", counted.same_bits},
                              {"must_pass", true},
                              {"compiled", counted.calls},
                              {"replays", counted.replays},
                              {"recorded", counted.recorded}}
            << std::endl;
  return good;
}

int main(const std::vector<std::string>& folders) {
  if (folders.empty()) throw std::invalid_argument("usage: recorded_calls CASE_FOLDER...");
  bool good = true;
  for (const std::string& folder : folders) good &= report(folder);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace titan::testing

int main(int argc, char** argv) {
  try {
    return titan::testing::main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "recorded_calls: " << error.what() << std::endl;
    return 2;
  }
}
