#pragma once

// Decides which weights' products use low precision (model.converters, [quantize.*]), as torchtitan 0.2.2 with torchao
// does, and checks these keys. Pure, so that the controller, the memory estimate and the ranks agree.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

enum class LowPrecision {
  kFloat8Tensorwise,   // One scale per matrix.
  kFloat8Rowwise,      // One scale per row of a factor, along the dim that is summed.
  kFloat8RowwiseGwHp,  // The same with power-of-two scales, and weight gradients in high precision.
  kMxfp8,              // One power-of-two scale per 32 elements.
};

// Returns a name such as "float8 tensorwise".
std::string_view name(LowPrecision recipe);

// Returns the recipe of recipe_name; tensorwise when not set.
LowPrecision float8_recipe(const Float8LinearSection& float8);

// Whether tensorwise scales cover a microbatch's elements on all ranks (quantize.linear.float8.scales_over). This is
// the default on CPUs, where runs then give the same numbers on every mesh. On GPUs each scale would need a blocking
// exchange over all ranks at every product, so the default there is torchao's meaning.
bool scales_over_all_ranks(const JobConfig& config);

bool converts(const JobConfig& config, std::string_view converter);  // Whether model.converters has `converter`.

// Returns the recipe for products with the weight `fqn` ("layers.0.attention.wq.weight", "layers.1.moe.experts.w1") of
// the unsharded shape `shape`; nothing: not converted. For a tied head pass "output.weight".
// Linear layers ([out, in], "*.weight", except the embedding): those with a name that contains none of filter_fqns and
// with dimensions that are multiples of 16 (float8; torchao's kernels) or 32 (mx: whole blocks). With
// `auto_filter_small_kn` among the filters, float8 also excludes layers that torchao's tables call too small to gain.
// Experts ([experts, out, in]): those with a module name that contains one of grouped_mm's fqns.
std::optional<LowPrecision> low_precision_of(const JobConfig& config, std::string_view fqn,
                                             const std::vector<std::int64_t>& shape);

// Whether FSDP, if it gathers this weight, gathers it as float8: with enable_fsdp_float8_all_gather, weights of the
// tensorwise recipe. For an embedding tied to the head pass the embedding's name: it is gathered unconverted.
bool gathered_as_float8(const JobConfig& config, std::string_view fqn, const std::vector<std::int64_t>& shape);

// Returns a sentence naming experts of a flavor that low_precision_of() would convert but that do not divide into
// blocks; empty: all can be converted.
std::string unfit_experts(const JobConfig& config, const models::ModelSpec& spec);

}  // namespace titan::config
