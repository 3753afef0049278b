#include "worker/rank/parallel/precision.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::parallel {
namespace {

absl::StatusOr<at::ScalarType> scalar_type(const std::string& key, const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  if (name == "float64") return at::kDouble;
  return absl::InvalidArgumentError(
      absl::StrCat("training.", key, ": \"", name, "\" is not one of float32, bfloat16, float16, float64"));
}

}  // namespace

absl::StatusOr<Precision> make_precision(const std::string& dtype, const std::string& mixed_precision_param,
                                         const std::string& mixed_precision_reduce) {
  Precision precision;
  TITAN_ASSIGN_OR_RETURN(precision.master, scalar_type("dtype", dtype));
  if (precision.master == at::kDouble) return Precision{at::kDouble, at::kDouble, at::kDouble};
  TITAN_ASSIGN_OR_RETURN(precision.param, scalar_type("mixed_precision_param", mixed_precision_param));
  TITAN_ASSIGN_OR_RETURN(precision.reduce, scalar_type("mixed_precision_reduce", mixed_precision_reduce));
  return precision;
}

}  // namespace titan::parallel
