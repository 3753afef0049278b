#include "tests/numerics/golden_case.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "common/plan/models/registry.h"
#include "tests/numerics/pinned_choices.h"
#include "tests/numerics/safetensors.h"
#include "tests/numerics/spec_changes.h"
#include "tests/testing/call_counter.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/loss.h"

namespace titan::testing {
namespace {

constexpr double kLogitTolerance = 1e-5;
constexpr double kGradTolerance = 1e-4;
constexpr double kLossFloor = 1e-3;  // Floor of the loss's error, since a single number may happen to be exact.
constexpr double kSpread = 2;        // Margin of a gradient's ratio, times the square root of its element count.
constexpr int64_t kFew = 64;         // Gradients with fewer elements have random errors and count only in the median.
constexpr double kClear = 5;         // Disturbed logits beyond this times the tolerance need no backward pass.

// Builds a whole parameter from tensors with Hugging Face names. Returns nullopt if they do not hold it in any layout.
std::optional<at::Tensor> from_hf(const Tensors& tensors, const std::string& prefix,
                                  const std::vector<checkpoint::HfLayout>& layouts, const std::vector<int64_t>& shape) {
  const checkpoint::Box box = checkpoint::whole(shape);
  for (const checkpoint::HfLayout& layout : layouts) {
    if (!tensors.contains(prefix + layout.keys.at(0))) continue;
    const checkpoint::Box there = checkpoint::hf_box(layout, shape, box);
    std::vector<at::Tensor> parts;
    for (const std::string& key : layout.keys) {
      at::Tensor part = tensors.at(prefix + key);
      if (part.sizes() != at::IntArrayRef(checkpoint::hf_shape(layout, shape))) {
        throw std::runtime_error(key + ": the shape in the weights file differs from the model's");
      }
      for (size_t d = 0; d < there.shape.size(); ++d) {
        part = part.narrow(static_cast<int64_t>(d), there.offset[d], there.shape[d]);
      }
      parts.push_back(checkpoint::from_hf_box(layout, shape, box, part));
    }
    return layout.stacked ? at::stack(parts) : parts[0].contiguous();
  }
  return std::nullopt;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(file);
}

}  // namespace

double rms(const at::Tensor& value) { return std::sqrt(value.to(at::kDouble).square().mean().item<double>()); }

double relative_rms(const at::Tensor& got, const at::Tensor& want) {
  return rms(got.to(at::kDouble) - want.to(at::kDouble)) / rms(want);
}

void Errors::add_grad(const std::string& fqn, const at::Tensor& got, const at::Tensor& want) {
  const double error = relative_rms(got, want);
  if (error <= grad) return;  // NaN counts as the largest.
  grad = error;
  worst = fqn;
}

bool Errors::pass() const { return logits < kLogitTolerance && grad < kGradTolerance && routed_elsewhere == 0; }

GoldenCase::GoldenCase(const std::string& folder)
    : about_(read_json(folder + "/case.json")),
      spec_(models::find(about_.at("family"), about_.at("flavor")).value()),
      hf_(read_safetensors(folder + "/model.safetensors")),
      peer_(read_safetensors(folder + "/step1.safetensors")) {
  const std::string rounded = folder + "/bfloat16.safetensors";
  if (std::filesystem::exists(rounded)) rounded_ = read_safetensors(rounded);
  change_spec(spec_, about_.at("spec"));
  const nlohmann::json& document_end = about_.at("document_end");
  spec_.mask = document_end.is_null() ? models::Mask::kCausal : models::Mask::kBlockCausal;
  if (!document_end.is_null()) spec_.eos_id = document_end;
  build(spec_);
}

void GoldenCase::build(const models::ModelSpec& spec, bool permute) {
  model_ = model::build(spec, {.seq_len = tokens().size(1)}).value();
  const auto mapper = model::make_hf_mapper(spec_).value();
  for (const auto& block : model_.blocks) {
    block->init_buffers(at::kCPU, at::kFloat);
    for (nn::Parameter& parameter : block->parameters()) {
      std::vector<checkpoint::HfLayout> layouts = mapper->layouts(parameter.fqn).value();
      for (checkpoint::HfLayout& layout : layouts) {
        if (!permute) layout.permute_heads = 0;
      }
      const std::optional<at::Tensor> value = from_hf(hf_, "", layouts, parameter.shape);
      if (!value) throw std::runtime_error("the oracle's weights lack " + parameter.fqn);
      parameter.weight = value->clone().requires_grad_();
    }
    for (nn::Buffer& buffer : block->buffers()) {
      const auto recorded = peer_.find("buffer." + buffer.fqn);
      const auto stored = from_hf(hf_, "", mapper->layouts(buffer.fqn).value(), buffer.value.sizes().vec());
      if (recorded != peer_.end()) {
        buffer.value.copy_(recorded->second);
      } else if (stored) {
        buffer.value.copy_(*stored);
      }
    }
  }
  watch_routers();
}

models::ModelSpec GoldenCase::rounded_spec() const {
  models::ModelSpec spec = spec_;
  change_spec(spec, about_.at("bfloat16_spec"));
  return spec;
}

void GoldenCase::watch_routers() {
  for (const auto& block : model_.blocks) {
    auto* layer = dynamic_cast<model::DecoderLayer*>(block.get());
    if (layer == nullptr || layer->moe == nullptr) continue;
    const std::string key = "routing." + block->name().substr(sizeof("layers.") - 1);
    layer->moe->gate.seams.input = [this, key](const at::Tensor& x) {
      router_inputs_[key] = x.detach();
      return x;
    };
  }
}

std::vector<std::string> GoldenCase::names() const {
  std::vector<std::string> names;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) names.push_back(parameter.fqn);
  }
  return names;
}

Tensors GoldenCase::weights() const {
  Tensors weights;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) weights[parameter.fqn] = parameter.weight.detach();
  }
  return weights;
}

Tensors GoldenCase::buffers() const {
  Tensors buffers;
  for (const auto& block : model_.blocks) {
    for (const nn::Buffer& buffer : block->buffers()) buffers[buffer.fqn] = buffer.value;
  }
  return buffers;
}

Errors GoldenCase::errors_of(const Tensors& step) const {
  Errors errors;
  errors.logits = relative_rms(step.at("logits"), peer_.at("logits"));
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      errors.add_grad(parameter.fqn, step.at("grad." + parameter.fqn), peer_grad(parameter));
    }
  }
  return errors;
}

at::Tensor GoldenCase::forward(const at::Tensor& tokens) {
  nn::MicrobatchContext context{.tokens = tokens};
  if (spec_.mask == models::Mask::kBlockCausal) context.documents = nn::number_documents(tokens, spec_.eos_id);
  at::Tensor x = tokens;
  for (const auto& block : model_.blocks) x = block->forward(x, context);
  return x;
}

std::vector<at::Tensor> GoldenCase::backward(const at::Tensor& loss) {
  std::vector<at::Tensor> weights;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) weights.push_back(parameter.weight);
  }
  return torch::autograd::grad({loss}, weights, {}, std::nullopt, false, /*allow_unused=*/true);
}

void GoldenCase::cast(at::ScalarType type) {
  for (const auto& block : model_.blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      parameter.weight = parameter.weight.detach().to(type).requires_grad_();
    }
  }
}

int64_t GoldenCase::count_calls() {
  backward(nn::cross_entropy_sum(forward(tokens()), labels()));  // Warm-up: one-time work is not part of a step.
  const CallCounter counter;
  backward(nn::cross_entropy_sum(forward(tokens()), labels()));
  return counter.count();
}

at::Tensor GoldenCase::peer_grad(const nn::Parameter& parameter) const { return grad_of(peer_, "", parameter); }

at::Tensor GoldenCase::grad_of(const Tensors& step, const std::string& prefix, const nn::Parameter& parameter) const {
  if (const auto ours = step.find(prefix + "grad." + parameter.fqn); ours != step.end()) return ours->second;
  const auto mapper = model::make_hf_mapper(spec_).value();
  const auto theirs = from_hf(step, prefix + "hf_grad.", mapper->layouts(parameter.fqn).value(), parameter.shape);
  if (!theirs) throw std::runtime_error("the oracle recorded no gradient of " + parameter.fqn);
  return *theirs;
}

std::vector<at::Tensor> GoldenCase::choices(const Tensors& step) const {
  std::vector<at::Tensor> all;
  for (const auto& block : model_.blocks) {
    const auto* layer = dynamic_cast<const model::DecoderLayer*>(block.get());
    if (layer == nullptr || layer->moe == nullptr) continue;
    all.push_back(step.at("routing." + block->name().substr(sizeof("layers.") - 1)));
  }
  return all;
}

Rounded GoldenCase::run_rounded() {
  const std::string theirs = "bfloat16.";
  at::Tensor logits;
  {
    const PinnedChoices pins(choices(rounded_), spec_.moe ? spec_.moe->num_experts : 0);
    logits = forward(tokens());
    if (!pins.all_taken()) throw std::runtime_error("the oracle has pinned choices that no router of the model used");
  }
  const auto over = [&](const at::Tensor& got, const std::string& key) {
    return relative_rms(got, rounded_.at(key)) / relative_rms(rounded_.at(theirs + key), rounded_.at(key));
  };
  Rounded ratios;
  ratios.logits = over(logits.detach(), "logits");
  const at::Tensor loss = nn::cross_entropy_sum(logits, labels()) / nn::count_valid(labels());
  const double exact = rounded_.at("loss").item<double>();
  const double own = std::abs(loss.item<double>() - exact);
  const double peer = std::abs(rounded_.at(theirs + "loss").item<double>() - exact);
  ratios.loss = own / (peer + kLossFloor * exact);
  const std::vector<at::Tensor> grads = backward(loss);
  std::vector<double> all;
  size_t i = 0;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      const at::Tensor& grad = grads[i++];
      const at::Tensor exact_grad = grad_of(rounded_, "", parameter);
      const double error = relative_rms(grad.defined() ? grad : at::zeros(parameter.shape), exact_grad);
      const double ratio = error / relative_rms(grad_of(rounded_, theirs, parameter), exact_grad);
      all.push_back(ratio);
      if (exact_grad.numel() < kFew) continue;
      const double sharp = ratio / (1 + kSpread / std::sqrt(static_cast<double>(exact_grad.numel())));
      if (sharp <= ratios.grad) continue;
      ratios.grad = sharp;
      ratios.worst = parameter.fqn;
    }
  }
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  ratios.median = all[all.size() / 2];
  return ratios;
}

Errors GoldenCase::run_disturbed() {
  const at::NoGradGuard no_grad;
  Errors errors;
  errors.logits = relative_rms(forward(tokens().slice(0, 0, 1)), peer_.at("logits").slice(0, 0, 1));
  if (errors.logits > kClear * kLogitTolerance) return errors;  // No gradient could make it pass.
  const at::AutoGradMode grad(true);
  return run();
}

Errors GoldenCase::run() {
  const at::Tensor logits = forward(tokens());
  Errors errors;
  errors.logits = relative_rms(logits.detach(), peer_.at("logits"));
  const at::Tensor loss = nn::cross_entropy_sum(logits, labels()) / nn::count_valid(labels());
  if (peer_.contains("loss")) errors.loss = std::abs(loss.item<double>() / peer_.at("loss").item<double>() - 1);

  const std::vector<at::Tensor> grads = backward(loss);
  size_t i = 0;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      const at::Tensor& grad = grads[i++];
      errors.add_grad(parameter.fqn, grad.defined() ? grad : at::zeros(parameter.shape), peer_grad(parameter));
    }
  }

  const at::NoGradGuard no_grad;
  const Tensors inputs = router_inputs_;  // A copy: routing again would record the inputs again.
  for (const auto& block : model_.blocks) {
    auto* layer = dynamic_cast<model::DecoderLayer*>(block.get());
    if (layer == nullptr || layer->moe == nullptr) continue;
    const std::string key = "routing." + block->name().substr(sizeof("layers.") - 1);
    const at::Tensor chosen = std::get<0>(layer->moe->route(inputs.at(key)).experts.sort(-1));
    errors.routed_elsewhere += chosen.ne(peer_.at(key)).any(-1).sum().item<int64_t>();
  }
  return errors;
}

void GoldenCase::with_noise(const std::string& fqn, double relative, const std::function<void()>& run) {
  at::Tensor& weight = find(fqn).weight;
  const at::Tensor clean = weight.detach().clone();
  {
    at::NoGradGuard no_grad;
    weight.add_(at::randn_like(weight) * (relative * rms(weight)));
  }
  run();
  at::NoGradGuard no_grad;
  weight.copy_(clean);
}

nn::Parameter& GoldenCase::find(const std::string& fqn) {
  for (const auto& block : model_.blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      if (parameter.fqn == fqn) return parameter;
    }
  }
  throw std::out_of_range(fqn);
}

}  // namespace titan::testing
