#pragma once

// Decides which weights' products are computed in low precision (model.converters, [quantize.*]), as torchtitan 0.2.2
// with torchao does, and checks these keys. Pure, so that the controller, the memory estimate and the ranks agree.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

enum class LowPrecision {
  kFloat8Tensorwise,   // One scale a matrix.
  kFloat8Rowwise,      // One scale a row or column of the sum.
  kFloat8RowwiseGwHp,  // The same, scales are powers of two; weight gradients in high precision.
  kMxfp8,              // One scale, a power of two, for 32 numbers.
};

// "float8 tensorwise".
std::string_view name(LowPrecision recipe);

LowPrecision float8_recipe(const Float8Linear& float8);  // What recipe_name says; tensorwise when not set.

// Whether tensorwise scales cover a microbatch's numbers on all ranks (quantize.linear.float8.scales_over). By default
// on CPUs, where a run then has the same numbers on every mesh. On GPUs each scale would cost a blocking exchange over
// all ranks beside every product, so that the default there is torchao's meaning.
bool scales_over_all_ranks(const JobConfig& config);

bool converts(const JobConfig& config, std::string_view converter);  // Whether model.converters has it.

// The recipe of products with the weight `fqn` ("layers.0.attention.wq.weight", "layers.1.moe.experts.w1"), whose whole
// shape is `shape`; none: numbers. A tied head's matrix is asked for as "output.weight".
// Linear layers ([out, in], "*.weight", the embedding left out): those whose name holds none of filter_fqns and whose
// dimensions are multiples of 16 (float8; torchao's kernels) or 32 (mx: whole blocks); with `auto_filter_small_kn`
// among the filters float8 also leaves out those that torchao's tables call too small to gain.
// Experts ([experts, out, in]): those whose module's name holds one of grouped_mm's fqns.
std::optional<LowPrecision> low_precision_of(const JobConfig& config, std::string_view fqn,
                                             const std::vector<std::int64_t>& shape);

// Whether FSDP gathers this weight as float8, where it gathers: one of the tensorwise recipe. An embedding that is tied
// to the head is asked for by its own name, and travels as numbers.
bool gathered_as_float8(const JobConfig& config, std::string_view fqn, const std::vector<std::int64_t>& shape);

// Experts of a flavor that low_precision_of() would name but whose sizes have no whole blocks, as a sentence that names
// them; empty: all can be converted.
std::string unfit_experts(const JobConfig& config, const models::ModelSpec& spec);

}  // namespace titan::config
