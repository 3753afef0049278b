#include "worker/rank/parallel/expert_balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/parallel/expert.h"

namespace titan::parallel {
namespace {

// Returns 3 for "layers.3.moe".
int64_t layer_of(const nn::MixtureOfExperts& mixture) {
  absl::string_view text = mixture.fqn();
  int64_t layer = 0;
  const bool numbered =
      absl::ConsumePrefix(&text, "layers.") && absl::SimpleAtoi(text.substr(0, text.find('.')), &layer);
  TORCH_CHECK(numbered, mixture.fqn(), ": experts belong to a numbered layer, \"layers.N.moe\"");
  return layer;
}

int64_t total(const std::vector<int64_t>& tokens) { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }

}  // namespace

double ExpertLoad::max_over_mean() const {
  const auto sum = static_cast<double>(total(tokens));
  if (sum == 0) return 1;
  const auto most = static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
  return most * static_cast<double>(tokens.size()) / sum;
}

double ExpertLoad::entropy() const {
  const auto sum = static_cast<double>(total(tokens));
  if (sum == 0 || tokens.size() < 2) return 1;
  double entropy = 0;
  for (const int64_t count : tokens) {
    const double share = static_cast<double>(count) / sum;
    if (count > 0) entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(tokens.size()));
}

int64_t ExpertLoad::idle() const { return std::count(tokens.begin(), tokens.end(), 0); }

ExpertBalance::ExpertBalance(const std::vector<nn::Block*>& blocks, double coefficient, const comm::DeviceMesh& mesh,
                             at::Device device)
    : coefficient_(coefficient), mesh_(mesh), device_(device) {
  for (nn::Block* block : blocks) {
    auto* layer = dynamic_cast<nn::HasExperts*>(block);
    if (layer != nullptr && layer->mixture() != nullptr) mixtures_.push_back(layer->mixture());
  }
}

void ExpertBalance::finish_step(const at::Tensor& skip) {
  if (mixtures_.empty()) return;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> counts;
  for (nn::MixtureOfExperts* mixture : mixtures_) {
    if (!mixture->tokens_per_expert.defined()) {  // No microbatch ran.
      mixture->tokens_per_expert = at::zeros({mixture->num_experts()}, at::TensorOptions(at::kLong).device(device_));
    }
    counts.push_back(mixture->tokens_per_expert);
  }
  counts_ = at::stack(counts);
  mesh_.group(mesh::Axis::kLoss).all_reduce(counts_).wait();
  if (tensor_ranks_split_tokens(mesh_.mesh())) mesh_.group(mesh::Axis::kTensor).all_reduce(counts_).wait();
  for (const at::Tensor& one : counts) one.zero_();
  if (coefficient_ == 0) return;
  const at::Tensor wide = counts_.to(at::kDouble);
  at::Tensor signs = at::sign(wide.mean(1, /*keepdim=*/true) - wide);
  if (skip.defined()) signs.mul_(1 - skip);
  for (size_t i = 0; i < mixtures_.size(); ++i) {
    at::Tensor bias = mixtures_[i]->expert_bias->value;
    const at::Tensor delta = signs[static_cast<int64_t>(i)].to(bias.scalar_type()) * coefficient_;
    bias.add_(delta - delta.mean());
  }
}

std::vector<ExpertLoad> ExpertBalance::loads(int64_t layers, int64_t experts) const {
  // An additional column marks the layers that have experts.
  at::Tensor all = at::zeros({layers, experts + 1}, at::TensorOptions(at::kLong).device(device_));
  for (size_t i = 0; i < mixtures_.size() && counts_.defined(); ++i) {
    at::Tensor row = all[layer_of(*mixtures_[i])];
    row.narrow(0, 0, experts).copy_(counts_[static_cast<int64_t>(i)]);
    row[experts] = 1;
  }
  if (mesh_.mesh().size(mesh::Axis::kPipeline) > 1) mesh_.group(mesh::Axis::kPipeline).all_reduce(all).wait();
  const device::AllowHostWaitGuard wait;
  all = all.cpu();
  const auto rows = all.accessor<int64_t, 2>();
  std::vector<ExpertLoad> loads;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (rows[layer][experts] == 0) continue;
    const int64_t* first = rows[layer].data();
    loads.push_back({absl::StrCat("layers.", layer), std::vector<int64_t>(first, first + experts)});
  }
  return loads;
}

std::vector<std::pair<std::string, double>> balance_figures(const std::vector<ExpertLoad>& loads) {
  if (loads.empty()) return {};
  double worst = 1, entropy = 1;
  int64_t idle = 0;
  std::vector<std::pair<std::string, double>> of_layers;
  for (const ExpertLoad& load : loads) {
    worst = std::max(worst, load.max_over_mean());
    entropy = std::min(entropy, load.entropy());
    idle += load.idle();
    of_layers.emplace_back(absl::StrCat("moe/", load.layer, "/max_over_mean"), load.max_over_mean());
    of_layers.emplace_back(absl::StrCat("moe/", load.layer, "/entropy"), load.entropy());
  }
  std::vector<std::pair<std::string, double>> figures = {
      {"moe/max_over_mean", worst}, {"moe/entropy", entropy}, {"moe/idle_experts", static_cast<double>(idle)}};
  figures.insert(figures.end(), of_layers.begin(), of_layers.end());
  return figures;
}

}  // namespace titan::parallel
