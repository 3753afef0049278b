// One training step of Titan's model against what the peer recorded, in one process: logits and every parameter's
// gradient.
//   compare_with_peer WEIGHTS_FOLDER PEER_FOLDER [--noise]
// --noise is the test of the test: the comparison must fail for each weight tensor with 1e-3 of noise, without RoPE
// scaling, and without the permutation of queries and keys. Prints one JSON line per check; exits with 1 when one is
// not as it must be.

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "common/models/registry.h"
#include "tests/numerics/engine_on_mesh.h"
#include "tests/numerics/safetensors.h"
#include "worker/model/hf_names.h"
#include "worker/model/model.h"
#include "worker/nn/loss.h"

namespace titan {
namespace {

constexpr double kLogitTolerance = 1e-5;
constexpr double kGradTolerance = 1e-4;
constexpr double kNoise = 1e-3;  // Relative to the tensor's rms.

using testing::Tensors;

double rms(const at::Tensor& value) { return std::sqrt(value.to(at::kDouble).square().mean().item<double>()); }

double relative_rms(const at::Tensor& got, const at::Tensor& want) {
  return rms(got.to(at::kDouble) - want.to(at::kDouble)) / rms(want);
}

struct Errors {
  double logits = 0, grad = 0, loss = 0;
  std::string worst;  // Parameter with the largest gradient error.

  void add_grad(const std::string& fqn, const at::Tensor& got, const at::Tensor& want) {
    const double error = relative_rms(got, want);
    if (error <= grad) return;  // Not a number counts as the largest.
    grad = error;
    worst = fqn;
  }
  bool pass() const { return logits < kLogitTolerance && grad < kGradTolerance; }
};

class Comparison {
 public:
  Comparison(const std::string& weights, const std::string& peer)
      : hf_(testing::read_safetensors(weights + "/model.safetensors")),
        peer_(testing::read_safetensors(peer + "/step1.safetensors")),
        spec_(models::find("llama3", "debugmodel").value()) {}

  // All names, so that each can be disturbed in turn.
  std::vector<std::string> build(bool rope_scaling = true, bool permute = true) {
    models::ModelSpec spec = spec_;
    if (!rope_scaling) spec.rope_scaling.reset();
    model_ = model::build(spec, {.seq_len = peer_["tokens"].size(1)}).value();
    std::vector<std::string> names;
    for (const auto& block : model_.blocks) {
      block->init_buffers(at::kCPU, at::kFloat);
      for (nn::Parameter& parameter : block->parameters()) {
        model::HfTensor place = model::hf_tensor(spec_, parameter.fqn).value();
        if (!permute) place.permute_heads = 0;
        parameter.weight = model::from_hf(place, hf_.at(place.key)).clone().requires_grad_();
        names.push_back(parameter.fqn);
      }
    }
    return names;
  }

  // Calls `run` while one parameter carries noise.
  void with_noise(const std::string& fqn, const std::function<void()>& run) {
    at::Tensor& weight = find(fqn);
    const at::Tensor clean = weight.detach().clone();
    {
      at::NoGradGuard no_grad;
      weight.add_(at::randn_like(weight) * (kNoise * rms(weight)));
    }
    run();
    at::NoGradGuard no_grad;
    weight.copy_(clean);
  }

  // The first row's logits; when they give the disturbance away, the rest is spared.
  Errors run_disturbed() {
    const at::NoGradGuard no_grad;
    Errors errors;
    errors.logits = relative_rms(forward(peer_["tokens"].slice(0, 0, 1)), peer_["logits"].slice(0, 0, 1));
    if (!errors.pass()) return errors;
    const at::AutoGradMode grad(true);
    return run();
  }

  Errors run() {
    const nn::MicrobatchContext context{peer_["tokens"], peer_["labels"]};
    const at::Tensor x = forward(context.tokens);
    std::vector<at::Tensor> weights;
    for (const auto& block : model_.blocks) {
      for (const nn::Parameter& parameter : block->parameters()) weights.push_back(parameter.weight);
    }
    Errors errors;
    errors.logits = relative_rms(x.detach(), peer_["logits"]);
    const at::Tensor loss = nn::cross_entropy_sum(x, context.labels) / nn::count_valid(context.labels);
    errors.loss = loss.item<double>();
    const auto grads = torch::autograd::grad({loss}, weights);
    size_t i = 0;
    for (const auto& block : model_.blocks) {
      for (const nn::Parameter& parameter : block->parameters()) {
        errors.add_grad(parameter.fqn, grads[i++], peer_.at("grad." + parameter.fqn));
      }
    }
    return errors;
  }

  Errors run_engine(const mesh::Degrees& degrees, int world) {
    Tensors weights;
    for (const auto& block : model_.blocks) {
      for (const nn::Parameter& parameter : block->parameters()) weights[parameter.fqn] = parameter.weight.detach();
    }
    const Tensors got = testing::engine_step(spec_, weights, peer_["tokens"], peer_["labels"], degrees, world);
    Errors errors;
    errors.logits = relative_rms(got.at("logits"), peer_["logits"]);
    for (const auto& [fqn, weight] : weights) errors.add_grad(fqn, got.at("grad." + fqn), peer_.at("grad." + fqn));
    return errors;
  }

 private:
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = tokens;
    for (const auto& block : model_.blocks) x = block->forward(x, {});
    return x;
  }

  at::Tensor& find(const std::string& fqn) {
    for (const auto& block : model_.blocks) {
      for (nn::Parameter& parameter : block->parameters()) {
        if (parameter.fqn == fqn) return parameter.weight;
      }
    }
    throw std::out_of_range(fqn);
  }

  Tensors hf_, peer_;
  models::ModelSpec spec_;
  model::Model model_;
};

// Prints the figures; true when the comparison passed or failed as it must.
bool report(const std::string& check, const Errors& errors, bool must_pass) {
  const bool good = errors.pass() == must_pass;
  std::cout << nlohmann::json{{"check", check},         {"good", good},           {"logits", errors.logits},
                              {"grad", errors.grad},    {"worst", errors.worst},  {"loss", errors.loss},
                              {"must_pass", must_pass}, {"passed", errors.pass()}}
            << std::endl;
  return good;
}

int main(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) throw std::invalid_argument("usage: compare_with_peer WEIGHTS PEER [--noise]");
  torch::manual_seed(1);
  Comparison comparison(arguments[1], arguments[2]);
  const std::vector<std::string> names = comparison.build();
  bool good = report("as it is", comparison.run(), true);
  good &= report("engine, 1 rank", comparison.run_engine({}, 1), true);
  good &= report("engine, FSDP 2", comparison.run_engine({.dp_shard = 2}, 2), true);
  good &= report("engine, DDP 2", comparison.run_engine({.dp_replicate = 2, .dp_shard = 1}, 2), true);
  good &= report("engine, HSDP 2x2", comparison.run_engine({.dp_replicate = 2, .dp_shard = 2}, 4), true);
  if (arguments.size() < 4 || arguments[3] != "--noise") return good ? 0 : 1;
  for (const std::string& fqn : names) {
    comparison.with_noise(fqn, [&] { good &= report("noise in " + fqn, comparison.run_disturbed(), false); });
  }
  good &= report("noise removed", comparison.run(), true);
  comparison.build(/*rope_scaling=*/false);
  good &= report("no RoPE scaling", comparison.run_disturbed(), false);
  comparison.build(/*rope_scaling=*/true, /*permute=*/false);
  good &= report("no permutation", comparison.run_disturbed(), false);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  try {
    return titan::main(std::vector<std::string>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "compare_with_peer: " << error.what() << std::endl;
    return 2;
  }
}
