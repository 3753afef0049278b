#include "worker/rank/checkpoint/shards/narrowing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"

namespace titan::checkpoint {
namespace {

const char* name_of(at::ScalarType type) {
  return type == at::kHalf ? "float16" : type == at::kBFloat16 ? "bfloat16" : c10::toString(type);
}

double largest_of(at::ScalarType type) {
  if (type == at::kHalf) return static_cast<double>(std::numeric_limits<at::Half>::max());
  if (type == at::kBFloat16) return static_cast<double>(std::numeric_limits<at::BFloat16>::max());
  return static_cast<double>(std::numeric_limits<float>::max());
}

int64_t count(const at::Tensor& mask) { return mask.sum().item<int64_t>(); }

}  // namespace

at::ScalarType narrowed_type(const std::string& key, at::ScalarType own, at::ScalarType wanted) {
  return at::isFloatingType(own) && !absl::EndsWith(key, ".moe.expert_bias") ? wanted : own;
}

at::Tensor Narrowing::cast(const at::Tensor& value, at::ScalarType type) {
  at::Tensor narrow = value.to(type);
  type_ = type;
  if (!at::isFloatingType(value.scalar_type()) || value.numel() == 0) return narrow;
  // The largest magnitude reveals both kinds of bad values, NaN included, in one pass.
  if (std::isfinite(narrow.abs().max().item<double>())) return narrow;
  const at::Tensor finite = at::isfinite(value);
  const at::Tensor lost = finite.logical_and(at::isfinite(narrow).logical_not_());
  nonfinite_ += value.numel() - count(finite);
  if (const int64_t overflowing = count(lost); overflowing > 0) {
    overflowing_ += overflowing;
    largest_ = std::max(largest_, value.masked_select(lost).abs_().max().item<double>());
  }
  return narrow;
}

std::string Narrowing::overflow(const std::string& key) const {
  return absl::StrCat(key, ": ", counted(overflowing_, "number"), overflowing_ == 1 ? ", " : ", the largest ",
                      absl::StrFormat("%.6g", largest_), overflowing_ == 1 ? ", is beyond " : ", are beyond ",
                      name_of(type_), ", whose maximum is ", absl::StrFormat("%.6g", largest_of(type_)));
}

std::string Narrowing::nonfinite(const std::string& key) const {
  return absl::StrCat(key, ": ", counted(nonfinite_, "number"), nonfinite_ == 1 ? " is" : " are", " NaN or infinite");
}

absl::Status judge(const std::string& key, const Narrowing& narrowing, Overflow overflow,
                   std::vector<std::string>& warnings) {
  if (narrowing.has_nonfinite()) warnings.push_back(narrowing.nonfinite(key));
  if (!narrowing.overflows()) return absl::OkStatus();
  if (overflow == Overflow::kRefuse) return absl::OutOfRangeError(narrowing.overflow(key));
  warnings.push_back(absl::StrCat(narrowing.overflow(key), " and infinite in the export"));
  return absl::OkStatus();
}

absl::Status narrow(const std::string& key, at::ScalarType type, Overflow overflow, at::Tensor& value,
                    std::vector<std::string>& warnings) {
  Narrowing narrowing;
  at::Tensor cast = narrowing.cast(value, type);
  if (overflow == Overflow::kKeepFloat32 && narrowing.overflows()) {
    if (narrowing.has_nonfinite()) warnings.push_back(narrowing.nonfinite(key));
    warnings.push_back(absl::StrCat(narrowing.overflow(key), ": the tensor is written in float32"));
    value = value.to(at::kFloat);
    return absl::OkStatus();
  }
  TITAN_RETURN_IF_ERROR(judge(key, narrowing, overflow, warnings));
  value = std::move(cast);
  return absl::OkStatus();
}

}  // namespace titan::checkpoint
