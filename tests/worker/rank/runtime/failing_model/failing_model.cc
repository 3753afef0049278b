// A model library that fails on one rank (rank_failures_test.py): --model.name failing --model.flavor small, with
// TITAN_TEST_FAILURE="RANK PLACE CALL [AXIS]", or @FILE with these words. It fails the CALL-th time that this rank is
// at PLACE. Places: forward, backward, validation (throw), hang (waits forever), spin (computes forever), stop (is
// stopped by a signal), memory (runs out of memory), shape (a collective of a wrong shape, which fails at once), other
// (a valid collective where the others of its group issue another), skip and size (its group on AXIS makes one
// additional collective each time, which the rank omits or gives one element more). At the failure it writes the time
// into FILE.struck.
#include <c10/core/impl/alloc_cpu.h>
#include <signal.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <sstream>

#include "worker/rank/model/families.h"
#include "worker/rank/model/plugin.h"

namespace {

using namespace titan;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Plan {
  int rank = -1;
  std::string place;
  int calls = 0;  // Calls left until the failure.
  std::string axis;
  std::string file;

  bool strikes(const char* here) {
    if (place != here || --calls != 0) return false;
    if (file.empty()) return true;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    std::ofstream(file + ".struck") << std::fixed << std::chrono::duration<double>(now).count() << "\n";
    return true;
  }
};

Plan read_plan() {
  Plan plan;
  const char* words = std::getenv("TITAN_TEST_FAILURE");
  std::string text = words == nullptr ? "" : words;
  if (!text.empty() && text[0] == '@') {
    plan.file = text.substr(1);
    std::ifstream from(plan.file);
    text.assign(std::istreambuf_iterator<char>(from), {});
  }
  std::istringstream(text) >> plan.rank >> plan.place >> plan.calls >> plan.axis;
  return plan;
}

mesh::Axis axis_named(const std::string& wanted) {
  for (const mesh::Axis axis : {mesh::Axis::kReplicate, mesh::Axis::kContext, mesh::Axis::kTensor, mesh::Axis::kFsdp}) {
    if (mesh::name(axis) == wanted) return axis;
  }
  throw std::runtime_error("no axis " + wanted);
}

// A test looks for this name in the rank's stack.
[[gnu::noinline]] void titan_test_spins() {
  for (int64_t i = 0;; ++i) asm volatile("" : : "r"(i));
}

// Makes all ranks of the failing rank's group issue one more collective than usual each time; the failing rank deviates
// as planned.
nn::Loss with_another_collective(nn::Loss usual, const std::shared_ptr<Plan>& plan,
                                 const model::ParallelOptions& options) {
  const comm::Group& group = options.mesh->group(axis_named(plan->axis));
  const bool is_victim = plan->rank == options.mesh->rank();
  const std::vector<int>& ranks = group.ranks();
  if (std::find(ranks.begin(), ranks.end(), plan->rank) == ranks.end()) return usual;
  return [usual, plan, &group, is_victim](const at::Tensor& logits, const at::Tensor& labels) {
    const bool is_now = at::GradMode::is_enabled() && is_victim && plan->strikes(plan->place.c_str());
    const bool skips = is_now && plan->place == "skip";
    if (!skips) group.all_reduce(at::ones({64 + (is_now ? 1 : 0)})).wait();
    return usual(logits, labels);
  };
}

struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& loss) { return loss.clone(); }
  static variable_list backward(AutogradContext*, const variable_list&) {
    throw std::runtime_error("injected into backward");
  }
};

nn::Loss failing_loss(nn::Loss usual, const model::ParallelOptions& options) {
  auto plan = std::make_shared<Plan>(read_plan());
  if (plan->place == "skip" || plan->place == "size") return with_another_collective(usual, plan, options);
  if (plan->rank != options.mesh->rank()) return usual;
  return [usual, plan, mesh = options.mesh](const at::Tensor& logits, const at::Tensor& labels) {
    const bool training = at::GradMode::is_enabled();
    if (training && plan->strikes("forward")) throw std::runtime_error("injected into forward");
    if (!training && plan->strikes("validation")) throw std::runtime_error("injected into validation");
    if (training && plan->strikes("hang")) {
      std::promise<void>().get_future().wait();
    }
    if (training && plan->strikes("spin")) titan_test_spins();
    if (training && plan->strikes("stop")) ::raise(SIGSTOP);
    if (training && plan->strikes("memory")) c10::free_cpu(c10::alloc_cpu(size_t{1} << 60));
    if (training && plan->strikes("shape")) {
      mesh->group(mesh::Axis::kTensor).all_to_all(at::empty({3, 2}), at::ones({3, 2}), {1, 1}, {2, 1}).wait();
    }
    if (training && plan->strikes("other")) {
      mesh->group(mesh::Axis::kTensor).all_to_all(at::empty({2, 2}), at::ones({2, 2}), {1, 1}, {1, 1}).wait();
    }
    const at::Tensor loss = usual(logits, labels);
    return training && plan->strikes("backward") ? FailingBackward::apply(loss) : loss;
  };
}

absl::StatusOr<model::Model> build(const models::ModelSpec& spec, const model::BuildOptions& options) {
  absl::StatusOr<model::Model> model = model::llama3::build(spec, options);
  if (!model.ok()) return model;
  model->parallelize = [usual = model->parallelize](model::Model& whole, const model::ParallelOptions& mesh) {
    absl::Status done = usual(whole, mesh);
    whole.loss = failing_loss(whole.loss, mesh);
    return done;
  };
  return model;
}

std::vector<model::PluginFamily> families() {
  models::ModelSpec spec;
  spec.flavor = "small";
  spec.dim = 32;
  spec.n_layers = 2;
  spec.n_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 8;
  spec.vocab_size = 2048;
  spec.ffn_hidden = 64;
  spec.max_seq_len = 2048;
  return {{.name = "failing", .flavors = {spec}, .build = build}};
}

}  // namespace

TITAN_MODEL_PLUGIN(families)
