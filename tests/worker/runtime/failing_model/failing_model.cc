// A model library whose loss fails on one rank (rank_failures_test.py): --model.name failing --model.flavor small, with
// TITAN_TEST_FAILURE="RANK PLACE CALL": the CALL-th time that this rank is at PLACE. Places: forward, backward,
// validation (throw), hang (computes for ever), memory (none left), shape (a collective of a wrong shape, which fails
// at once), other (a sound collective where the others of its group issue another).
#include <c10/core/impl/alloc_cpu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdlib>
#include <future>
#include <sstream>

#include "worker/model/families.h"
#include "worker/model/plugin.h"

namespace {

using namespace titan;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Plan {
  int rank = -1;
  std::string place;
  int calls = 0;  // Left until it strikes.

  bool strikes(const char* here) { return place == here && --calls == 0; }
};

struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& loss) { return loss.clone(); }
  static variable_list backward(AutogradContext*, const variable_list&) {
    throw std::runtime_error("injected into backward");
  }
};

nn::Loss failing_loss(nn::Loss usual, const model::ParallelOptions& options) {
  auto plan = std::make_shared<Plan>();
  const char* words = std::getenv("TITAN_TEST_FAILURE");
  std::istringstream(words == nullptr ? "" : words) >> plan->rank >> plan->place >> plan->calls;
  if (plan->rank != options.mesh->rank()) return usual;
  return [usual, plan, mesh = options.mesh](const at::Tensor& logits, const at::Tensor& labels) {
    const bool training = at::GradMode::is_enabled();
    if (training && plan->strikes("forward")) throw std::runtime_error("injected into forward");
    if (!training && plan->strikes("validation")) throw std::runtime_error("injected into validation");
    if (training && plan->strikes("hang")) {
      std::promise<void>().get_future().wait();
    }
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
