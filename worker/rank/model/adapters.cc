#include "worker/rank/model/adapters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/rank/nn/nf4.h"

namespace titan::model {
namespace {

using nn::TensorAxisPlacement;

bool takes_adapter(const nn::Parameter& parameter) {
  if (parameter.expert) return models::adapts_experts(parameter.fqn);
  return parameter.of_linear && absl::StartsWith(parameter.fqn, "layers.") &&
         !models::pattern_names("router", parameter.fqn);
}

bool is_cut(const nn::Parameter& parameter, size_t dim) { return parameter.shape[dim] != parameter.global_shape[dim]; }

// Returns how the tensor ranks hold a matrix that keeps dim `kept` of `base` and replaces dim `other`. A rank that has
// the whole matrix but computes a part of the layer has a part of its gradient. If ranks hold different experts whole,
// each rank holds the matrices of its experts.
TensorAxisPlacement on_tensor_axis(const nn::Parameter& base, size_t kept, size_t other) {
  if (is_cut(base, kept)) return TensorAxisPlacement::kShard;
  if (base.on_tensor_axis == TensorAxisPlacement::kReplicate) return TensorAxisPlacement::kReplicate;
  return base.expert && !is_cut(base, other) ? TensorAxisPlacement::kShard : TensorAxisPlacement::kPartial;
}

// Returns a matrix, or one per expert, with `base`'s split and shape except that dim `narrow`, one of the last two, has
// `rank` elements.
nn::Parameter matrix_beside(const nn::Parameter& base, size_t narrow, std::string fqn, int64_t rank, nn::Init init) {
  nn::Parameter matrix;
  matrix.fqn = std::move(fqn);
  matrix.init = init;
  matrix.shape = base.shape;
  matrix.global_shape = base.global_shape;
  matrix.offset = base.offset;
  matrix.shape[narrow] = matrix.global_shape[narrow] = rank;
  matrix.offset[narrow] = 0;
  const size_t last = base.shape.size() - 1;
  matrix.on_tensor_axis = on_tensor_axis(base, narrow == last ? last - 1 : last, narrow);
  matrix.expert = base.expert;
  matrix.of_linear = base.of_linear;
  matrix.adapts = true;
  return matrix;
}

// Draws the matrices like PEFT: A uniform in +-1 / sqrt(inputs), and B zero, so that training starts at the base model.
void add_adapter(nn::Block& block, nn::Parameter& base, const models::AdapterSpec& adapters) {
  const std::string layer = models::layer_of(base.fqn);
  const size_t inputs = base.shape.size() - 1, outputs = inputs - 1;
  const double bound = 1 / std::sqrt(static_cast<double>(base.global_shape[inputs]));
  const nn::Init uniform{.kind = nn::Init::Kind::kUniform, .lower = -bound, .upper = bound};
  const nn::Parameter& a =
      block.add_parameter(matrix_beside(base, outputs, models::adapter_a(layer), adapters.rank, uniform));
  const nn::Parameter& b =
      block.add_parameter(matrix_beside(base, inputs, models::adapter_b(layer), adapters.rank, {}));
  base.adapter = nn::Adapter{.a = &a, .b = &b, .scale = adapters.scale()};
}

absl::Status pack(nn::Parameter& parameter) {
  const int64_t columns = parameter.shape[1];
  if (columns % models::kNf4Block != 0) {
    return absl::InvalidArgumentError(absl::StrCat("lora.base: nf4 keeps blocks of ", models::kNf4Block,
                                                   " weights, which do not divide the ", columns, " inputs of ",
                                                   parameter.fqn, " on this rank"));
  }
  parameter.packed_row = models::nf4_row_bytes(columns);
  parameter.products = &nn::nf4_matmul_recipe();
  return absl::OkStatus();
}

}  // namespace

absl::Status add_adapters(Model& model, const models::AdapterSpec& adapters) {
  std::vector<std::string> layers;
  for (const auto& block : model.blocks) {
    std::vector<nn::Parameter*> own;  // add_adapter() appends to the block's parameters.
    for (nn::Parameter& parameter : block->parameters()) own.push_back(&parameter);
    for (nn::Parameter* parameter : own) {
      parameter->frozen = true;
      if (!takes_adapter(*parameter)) continue;
      if (adapters.base == models::BaseForm::kNf4 && !parameter->expert) {
        if (absl::Status bad = pack(*parameter); !bad.ok()) return bad;
      }
      layers.push_back(models::layer_of(parameter->fqn));
      if (models::any_pattern_names(adapters.targets, layers.back())) add_adapter(*block, *parameter, adapters);
    }
  }
  const bool any = std::any_of(layers.begin(), layers.end(), [&](const std::string& layer) {
    return models::any_pattern_names(adapters.targets, layer);
  });
  if (any) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("lora.targets: ", absl::StrJoin(adapters.targets, ", "),
                                                 " match no linear layer of this model",
                                                 layers.empty() ? "" : absl::StrCat("; it has ", layers.front())));
}

}  // namespace titan::model
