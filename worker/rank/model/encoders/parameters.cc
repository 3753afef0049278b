#include "worker/rank/model/encoders/parameters.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/model/encoders/int8_rows.h"
#include "worker/rank/nn/init.h"

namespace titan::encoders {
namespace {

void place(nn::Parameter& parameter, const at::Tensor& values, const Placement& placement) {
  const at::Tensor held = held_form(parameter, values, placement.dtype).to(placement.device).contiguous();
  parameter.weight = held.is_alias_of(values) ? held.clone() : held;
}

}  // namespace

// fp16 is left out because T5's activations exceed its range.
absl::Status check_dtype(at::ScalarType dtype) {
  if (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("frozen encoders compute in float32, bfloat16 or float64, not in ", c10::toString(dtype)));
}

at::Tensor held_form(const nn::Parameter& parameter, const at::Tensor& values, at::ScalarType dtype) {
  return parameter.packed_row > 0 ? int8_pack(values) : values.to(dtype);
}

absl::Status load(const FrozenWeights& weights, const std::vector<nn::Parameter*>& parameters,
                  const Placement& placement) {
  TITAN_RETURN_IF_ERROR(check_dtype(placement.dtype));
  TITAN_RETURN_IF_ERROR(weights.check(parameters));
  for (nn::Parameter* parameter : parameters) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor values,
                           weights.read(*parameter, checkpoint::whole(parameter->global_shape)));
    place(*parameter, values, placement);
  }
  return absl::OkStatus();
}

absl::Status draw(uint64_t seed, const std::vector<nn::Parameter*>& parameters, const Placement& placement) {
  TITAN_RETURN_IF_ERROR(check_dtype(placement.dtype));
  for (nn::Parameter* parameter : parameters) {
    const at::Tensor values = at::empty(parameter->global_shape, at::kFloat);
    nn::fill(*parameter, seed, 0, values.numel(), values);
    place(*parameter, values, placement);
  }
  return absl::OkStatus();
}

absl::Status allocate(const std::vector<nn::Parameter*>& parameters, const Placement& placement) {
  TITAN_RETURN_IF_ERROR(check_dtype(placement.dtype));
  for (nn::Parameter* parameter : parameters) {
    std::vector<int64_t> shape = parameter->global_shape;
    const bool packed = parameter->packed_row > 0;
    if (packed) shape[1] = parameter->packed_row;
    parameter->weight =
        at::empty(shape, at::TensorOptions(packed ? at::kByte : placement.dtype).device(placement.device));
  }
  return absl::OkStatus();
}

}  // namespace titan::encoders
