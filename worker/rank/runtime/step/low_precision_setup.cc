#include "worker/rank/runtime/step/low_precision_setup.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/config/low_precision.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::runtime {
namespace {

using config::LowPrecision;
using mesh::Axis;

nn::LowPrecisionRecipe recipe_of(LowPrecision recipe) {
  switch (recipe) {
    case LowPrecision::kFloat8Tensorwise:
      return nn::LowPrecisionRecipe::kFloat8Tensorwise;
    case LowPrecision::kFloat8Rowwise:
      return nn::LowPrecisionRecipe::kFloat8Rowwise;
    case LowPrecision::kFloat8RowwiseGwHp:
      return nn::LowPrecisionRecipe::kFloat8RowwiseGwHp;
    case LowPrecision::kMxfp8:
      break;
  }
  return nn::LowPrecisionRecipe::kMxfp8;
}

// Takes the maximum over these groups' ranks. If a block saved it in the first pass, the recomputation does not
// communicate.
nn::AmaxOverRanks over(const std::vector<const comm::Group*>& groups, bool may_be_kept) {
  if (groups.empty()) return {};
  return [groups, may_be_kept](at::Tensor& amax) {
    const auto exchange = [&] {
      at::Tensor greatest = amax.clone();
      for (const comm::Group* group : groups) group->all_reduce(greatest, c10d::ReduceOp::MAX).wait();
      return greatest;
    };
    amax.copy_(may_be_kept ? nn::saved_or_compute({.kind = nn::OpCall::Kind::kGreatest}, exchange) : exchange());
  };
}

std::vector<const comm::Group*> larger_than_one(const comm::DeviceMesh& mesh, std::initializer_list<Axis> axes) {
  std::vector<const comm::Group*> groups;
  for (const Axis axis : axes) {
    if (mesh.mesh().size(axis) > 1) groups.push_back(&mesh.group(axis));
  }
  return groups;
}

// Returns groups that cover all ranks with parts of a microbatch, in as few exchanges as the mesh's groups allow.
std::vector<const comm::Group*> ranks_of_scales(const config::JobConfig& config, const comm::DeviceMesh& mesh) {
  if (!config::scales_over_all_ranks(config)) return larger_than_one(mesh, {Axis::kTensor});
  if (mesh.mesh().size(Axis::kPipeline) == 1) return larger_than_one(mesh, {Axis::kWorld});
  return larger_than_one(mesh, {Axis::kTensor, Axis::kLoss});
}

std::shared_ptr<const nn::MatmulRecipe> make_recipe(const config::JobConfig& config, const comm::DeviceMesh& mesh,
                                                    LowPrecision recipe) {
  const config::QuantizeLinearSection& linear = config.quantize.linear;
  nn::LowPrecisionOptions options;
  options.recipe = recipe_of(recipe);
  if (recipe == LowPrecision::kMxfp8) {
    options.emulate = linear.mx.recipe_name == "mxfp8_emulated";
    if (linear.mx.recipe_name == "mxfp8_cublas_rceil") options.rounding = nn::MxRounding::kRceil;
  } else {
    options.emulate = linear.float8.emulate;
  }
  if (recipe == LowPrecision::kFloat8Tensorwise) {
    options.input_over_ranks = over(ranks_of_scales(config, mesh), /*may_be_kept=*/true);
    options.gradient_over_ranks = over(ranks_of_scales(config, mesh), /*may_be_kept=*/false);
    options.weight_over_ranks = over(larger_than_one(mesh, {Axis::kTensor}), /*may_be_kept=*/false);
  }
  return nn::make_low_precision_recipe(options);
}

// If the last block uses a parameter as its matrix, the parameter has the name that it has there ("output.weight").
std::string converted_name(const model::Model& model, const nn::Parameter& parameter) {
  nn::Block& head = *model.blocks.back();
  const std::vector<nn::Parameter*> shared = head.shared_parameters();
  const bool tied = std::find(shared.begin(), shared.end(), &parameter) != shared.end();
  return tied ? absl::StrCat(head.name(), ".weight") : parameter.fqn;
}

std::optional<LowPrecision> conversion_of(const config::JobConfig& config, const model::Model& model,
                                          const nn::Parameter& parameter) {
  return config::low_precision_of(config, converted_name(model, parameter), parameter.global_shape);
}

// MX's blocks are 32 elements along either dimension. A block shared by two ranks would have two scales.
absl::Status check_blocks(const nn::Parameter& parameter, LowPrecision recipe) {
  const bool whole =
      std::all_of(parameter.shape.end() - 2, parameter.shape.end(), [](int64_t size) { return size % 32 == 0; });
  if (recipe != LowPrecision::kMxfp8 || whole) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.converters: a rank's part of ", parameter.fqn, " is ", absl::StrJoin(parameter.shape, " x "),
                   ", and MX needs multiples of 32; lower parallelism.tensor_parallel_degree, or name it in "
                   "quantize.linear.mx.filter_fqns"));
}

}  // namespace

absl::Status assign_recipes(const config::JobConfig& config, const comm::DeviceMesh& mesh, model::Model& model) {
  if (config.model.converters.empty()) return absl::OkStatus();
  std::map<LowPrecision, std::shared_ptr<const nn::MatmulRecipe>> recipes;
  for (const auto& block : model.blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      const std::optional<LowPrecision> recipe = conversion_of(config, model, parameter);
      if (!recipe) continue;
      TITAN_RETURN_IF_ERROR(check_blocks(parameter, *recipe));
      auto& made = recipes[*recipe];
      if (made == nullptr) model.recipes.push_back(made = make_recipe(config, mesh, *recipe));
      parameter.products = made.get();
    }
  }
  return absl::OkStatus();
}

bool has_tensorwise_scales(const config::JobConfig& config) {
  return config::converts(config, "quantize.linear.float8") &&
         config::float8_recipe(config.quantize.linear.float8) == LowPrecision::kFloat8Tensorwise;
}

void gather_in_float8(const config::JobConfig& config, const comm::DeviceMesh& mesh, ShardingOptions& options) {
  const config::Float8LinearSection& float8 = config.quantize.linear.float8;
  if (!config::converts(config, "quantize.linear.float8") || !float8.enable_fsdp_float8_all_gather) return;
  const comm::Group* tensor = mesh.mesh().size(Axis::kTensor) > 1 ? &mesh.group(Axis::kTensor) : nullptr;
  options.float8_gather = std::make_shared<parallel::Float8Gather>(
      mesh.group(Axis::kFsdp), tensor, options.precision.param, float8.precompute_float8_dynamic_scale_for_fsdp);
  options.as_float8 = [config](const nn::Parameter& parameter) {
    return config::gathered_as_float8(config, parameter.fqn, parameter.global_shape);
  };
}

std::vector<std::string> conversion_lines(const config::JobConfig& config, const model::Model& model,
                                          at::Device device) {
  std::vector<std::string> lines;
  std::optional<LowPrecision> emulated;
  for (const auto& block : model.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      if (parameter.products == nullptr) continue;
      const LowPrecision recipe = *conversion_of(config, model, parameter);
      if (!nn::has_low_precision_matmul(recipe_of(recipe), device)) emulated = recipe;
      if (!config.model.print_after_conversion) continue;
      lines.push_back(absl::StrCat(parameter.fqn, " [", absl::StrJoin(parameter.global_shape, ", "),
                                   "]: ", std::string(config::name(recipe))));
    }
  }
  const bool asked = config.quantize.linear.float8.emulate || config.quantize.linear.mx.recipe_name == "mxfp8_emulated";
  if (emulated && !asked) {
    lines.push_back(absl::StrCat("model.converters: ", device.str(), " has no matmuls in ",
                                 std::string(config::name(*emulated)),
                                 ": they are emulated in high precision, which is slower than "
                                 "without converters"));
  }
  return lines;
}

}  // namespace titan::runtime
