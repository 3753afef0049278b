#include "worker/rank/runtime/step/resumed_balance.h"

#include "absl/strings/str_cat.h"

namespace titan::runtime {
namespace {

// -1: it has none.
int64_t first_layer_with_experts(const models::ModelSpec& spec) {
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (spec.layer_has_experts(layer)) return layer;
  }
  return -1;
}

// Whether Hugging Face's form of the model has a place for the biases.
bool exports_biases(const Built& built) {
  const int64_t layer = first_layer_with_experts(built.spec);
  if (built.hf_mapper == nullptr || layer < 0) return true;
  const auto layouts = built.hf_mapper->layouts(absl::StrCat("layers.", layer, ".moe.expert_bias"));
  return !layouts.ok() || !layouts->empty();
}

void tell_balance(const RankContext& context, const Built& built, double coefficient) {
  const std::string key = absl::StrCat("model.load_balance_coeff = ", coefficient);
  if (coefficient == 0)
    return log_line(absl::StrCat("The biases that balance the experts stay as they are (", key, ")"));
  log_line(absl::StrCat("Each step moves the biases that balance the experts (", key, ")"));
  if (exports_biases(built)) return;
  context.reporter->warning(absl::StrCat(
      "training moves the biases that balance the experts (", key, "), for which Hugging Face weights of ",
      built.spec.name,
      " have no place: an export is another model than the one that was trained; model.load_balance_coeff = 0 leaves "
      "them as they are"));
}

}  // namespace

double settle_balance(const RankContext& context, const checkpoint::LoadResult& read, Built& built) {
  if (!built.balance) return 0;
  const std::optional<double>& of_weights = read.load_balance_coeff;
  const bool resumed = read.source == checkpoint::Source::kCheckpoint;
  double coefficient = built.spec.moe->load_balance_coeff;  // The key's, where it is set.
  if (!context.config.model.load_balance_coeff && of_weights && (resumed || *of_weights == 0))
    coefficient = *of_weights;
  if (built.adapters) coefficient = 0;  // What stays as it is includes the biases.
  built.balance->set_coefficient(coefficient);
  if (context.rank == 0 && !built.adapters) tell_balance(context, built, coefficient);
  return coefficient;
}

}  // namespace titan::runtime
