#include "worker/tools/diff.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/box.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/step_reader.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // This file is the folder's offline face.

constexpr int64_t kNumbers = int64_t{1} << 22;  // At once, of each step: some 200 MiB with what is computed of them.

// How far two tensors of one shape are from each other.
struct Distance {
  int64_t elements = 0, differing = 0;
  double absolute = 0, relative = 0;  // The largest; infinite where one of two is no number.

  void add(const at::Tensor& a, const at::Tensor& b);
};

double largest(const at::Tensor& values) {
  return at::nan_to_num(values, HUGE_VAL, HUGE_VAL, HUGE_VAL).max().item<double>();
}

void Distance::add(const at::Tensor& a, const at::Tensor& b) {
  const bool whole = !at::isFloatingType(a.scalar_type()) && !at::isFloatingType(b.scalar_type());
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  at::Tensor differs = whole ? a.to(at::kLong).ne(b.to(at::kLong)) : x.ne(y).logical_and_(x.eq(x).logical_or_(y.eq(y)));
  const auto count = differs.sum().item<int64_t>();
  elements += a.numel();
  differing += count;
  if (count == 0) return;
  const at::Tensor delta = (x - y).abs_().masked_select(differs);
  absolute = std::max(absolute, largest(delta));
  relative = std::max(relative, largest(delta / at::maximum(x.abs(), y.abs()).masked_select(differs)));
}

at::Tensor empty_like(const TensorRecord& record, const Box& box) {
  return at::empty(box.shape, at::TensorOptions().dtype(record.dtype));
}

absl::StatusOr<Distance> distance_of(StepReader& a, const TensorRecord& in_a, StepReader& b, const TensorRecord& in_b) {
  Distance distance;
  for (const Box& part : cut(whole(in_a.shape), kNumbers)) {
    if (part.elements() == 0) continue;
    at::Tensor of_a = empty_like(in_a, part), of_b = empty_like(in_b, part);
    TITAN_RETURN_IF_ERROR(a.read(in_a, part, of_a));
    TITAN_RETURN_IF_ERROR(b.read(in_b, part, of_b));
    distance.add(of_a, of_b);
  }
  return distance;
}

std::string form_of(const TensorRecord& tensor) {
  return absl::StrCat(safetensors_dtype(tensor.dtype).value_or("?"), " ", shape_text(tensor.shape));
}

// Says what differs, and counts it.
class DiffReport {
 public:
  DiffReport(std::ostream& out, const DiffOptions& options) : out_(out), options_(options) {}

  void only(const char* where, const std::string& key, const TensorRecord& tensor) {
    tell({{"key", key}, {"only_in", where}}, absl::StrCat(key, "  only in ", where, ": ", form_of(tensor)));
  }
  void shapes(const TensorRecord& a, const TensorRecord& b) {
    tell({{"key", a.key}, {"a", form_of(a)}, {"b", form_of(b)}},
         absl::StrCat(a.key, "  ", form_of(a), " and ", form_of(b)));
  }
  void numbers(const TensorRecord& a, const TensorRecord& b, const Distance& distance) {
    ++compared_;
    if (distance.differing == 0 && a.dtype == b.dtype) return;
    const std::string forms = a.dtype == b.dtype ? form_of(a) : absl::StrCat(form_of(a), " and ", form_of(b));
    nlohmann::json row = {{"key", a.key},
                          {"a", form_of(a)},
                          {"b", form_of(b)},
                          {"differing", distance.differing},
                          {"elements", distance.elements}};
    for (const auto& [name, value] : {std::pair("absolute", distance.absolute), {"relative", distance.relative}}) {
      row[name] = std::isfinite(value) ? nlohmann::json(value) : nlohmann::json("infinite");
    }
    tell(row, absl::StrFormat("%s  %s  %d of %d numbers differ, by %.3g at most (relative %.3g)", a.key, forms,
                              distance.differing, distance.elements, distance.absolute, distance.relative));
  }
  bool same() {
    if (!options_.json && differing_ == 0) out_ << "the same: " << counted(compared_, "tensor") << "\n";
    if (!options_.json && differing_ > 0) {
      out_ << counted(differing_, "tensor") << (differing_ == 1 ? " differs" : " differ") << "\n";
    }
    return differing_ == 0;
  }

 private:
  void tell(const nlohmann::json& row, const std::string& text) {
    ++differing_;
    out_ << (options_.json ? row.dump() : text) << std::endl;
  }

  std::ostream& out_;
  const DiffOptions& options_;
  size_t compared_ = 0, differing_ = 0;
};

}  // namespace

absl::StatusOr<bool> diff(storage::Files& files, const std::string& a, const std::string& b, const DiffOptions& options,
                          std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> of_a, StepReader::open(files, a));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> of_b, StepReader::open(files, b));
  const auto counts = [&](const std::string& key) { return !options.model_only || absl::StartsWith(key, "model."); };
  DiffReport report(out, options);
  for (const TensorRecord& tensor : of_a->manifest().tensors) {
    if (!counts(tensor.key)) continue;
    const TensorRecord* other = of_b->manifest().find(tensor.key);
    if (other == nullptr) {
      report.only("A", tensor.key, tensor);
    } else if (other->shape != tensor.shape) {
      report.shapes(tensor, *other);
    } else {
      TITAN_ASSIGN_OR_RETURN(const Distance distance, distance_of(*of_a, tensor, *of_b, *other));
      report.numbers(tensor, *other, distance);
    }
  }
  for (const TensorRecord& tensor : of_b->manifest().tensors) {
    if (counts(tensor.key) && of_a->manifest().find(tensor.key) == nullptr) report.only("B", tensor.key, tensor);
  }
  return report.same();
}

}  // namespace titan::tools
