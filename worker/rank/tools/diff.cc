#include "worker/rank/tools/diff.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/tools/tensor_folder.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // Most names here are from checkpoint.

constexpr int64_t kNumbers = int64_t{1} << 22;  // Elements compared at once: about 200 MiB with temporaries.

// Distance between two tensors of the same shape.
struct Distance {
  int64_t elements = 0, differing = 0;
  double absolute = 0, relative = 0;  // Largest values. Infinite if one of two elements is NaN.

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

absl::StatusOr<Distance> distance_of(TensorFolder& a, const NamedTensor& in_a, TensorFolder& b,
                                     const NamedTensor& in_b) {
  Distance distance;
  for (const Box& part : cut(whole(in_a.shape), kNumbers)) {
    if (part.elements() == 0) continue;
    TITAN_ASSIGN_OR_RETURN(const at::Tensor of_a, a.read(in_a, part));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor of_b, b.read(in_b, part));
    distance.add(of_a, of_b);
  }
  return distance;
}

std::string form_of(const NamedTensor& tensor) {
  return absl::StrCat(safetensors_dtype(tensor.dtype).value_or("?"), " ", shape_text(tensor.shape));
}

// The largest value of a figure, and the tensor that has it.
struct Largest {
  double value = -1;
  std::string key;

  void add(double other, const std::string& of) {
    if (other > value) *this = {other, of};
  }
  std::string text() const { return absl::StrFormat("%.3g (%s)", value, key); }
};

// Collects differences, so that their summary can be printed first.
class DiffReport {
 public:
  explicit DiffReport(const DiffOptions& options) : options_(options) {}

  void only(const char* where, const std::string& key, const NamedTensor& tensor) {
    ++alone_;
    add({{"key", key}, {"only_in", where}}, absl::StrCat(key, "  only in ", where, ": ", form_of(tensor)));
  }
  void shapes(const NamedTensor& a, const NamedTensor& b) {
    ++compared_;
    ++shapes_;
    add({{"key", a.key}, {"a", form_of(a)}, {"b", form_of(b)}},
        absl::StrCat(a.key, "  ", form_of(a), " and ", form_of(b)));
  }
  void numbers(const NamedTensor& a, const NamedTensor& b, const Distance& distance) {
    ++compared_;
    if (distance.differing == 0 && a.dtype == b.dtype) return;
    absolute_.add(distance.absolute, a.key);
    relative_.add(distance.relative, a.key);
    const std::string forms = a.dtype == b.dtype ? form_of(a) : absl::StrCat(form_of(a), " and ", form_of(b));
    nlohmann::json row = {{"key", a.key},
                          {"a", form_of(a)},
                          {"b", form_of(b)},
                          {"differing", distance.differing},
                          {"elements", distance.elements}};
    for (const auto& [name, value] : {std::pair("absolute", distance.absolute), {"relative", distance.relative}}) {
      row[name] = std::isfinite(value) ? nlohmann::json(value) : nlohmann::json("infinite");
    }
    add(row, absl::StrFormat("%s  %s  %d of %d numbers differ, by %.3g at most (relative %.3g)", a.key, forms,
                             distance.differing, distance.elements, distance.absolute, distance.relative));
  }
  // Prints the report. Returns whether nothing differs.
  bool print(std::ostream& out) const {
    if (!options_.json) out << summary() << "\n";
    for (const std::string& line : lines_) out << line << "\n";
    out << std::flush;
    return lines_.empty();
  }

 private:
  void add(const nlohmann::json& row, const std::string& text) { lines_.push_back(options_.json ? row.dump() : text); }

  // Returns "the same: 57 tensors", or "3 of 57 tensors differ; largest difference 0.5 (KEY), relative 0.1 (KEY)".
  std::string summary() const {
    if (lines_.empty()) return absl::StrCat("the same: ", counted(compared_, "tensor"));
    std::string text = absl::StrCat(lines_.size(), " of ", counted(compared_ + alone_, "tensor"),
                                    lines_.size() == 1 ? " differs" : " differ");
    if (!absolute_.key.empty())
      absl::StrAppend(&text, "; largest difference ", absolute_.text(), ", relative ", relative_.text());
    if (shapes_ > 0) absl::StrAppend(&text, "; ", shapes_, " with different shapes");
    if (alone_ > 0) absl::StrAppend(&text, "; ", alone_, " in only one of the two");
    return text;
  }

  const DiffOptions& options_;
  std::vector<std::string> lines_;
  size_t compared_ = 0, shapes_ = 0, alone_ = 0;
  Largest absolute_, relative_;
};

}  // namespace

absl::StatusOr<bool> diff(storage::Files& files, const std::string& a, const std::string& b, const DiffOptions& options,
                          std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const FolderPair both, open_both(files, a, b, options.model));
  const auto& [of_a, of_b] = both;
  if (options.model_only) {
    for (TensorFolder* one : {of_a.get(), of_b.get()})
      one->remove_tensors([](const NamedTensor& tensor) { return !tensor.of_model; });
  }
  std::map<std::string, const NamedTensor*> others;
  for (const NamedTensor& tensor : of_b->tensors()) others[tensor.key] = &tensor;
  DiffReport report(options);
  for (const NamedTensor& tensor : of_a->tensors()) {
    const auto other = others.extract(tensor.key);
    if (other.empty()) {
      report.only("A", tensor.key, tensor);
    } else if (other.mapped()->shape != tensor.shape) {
      report.shapes(tensor, *other.mapped());
    } else {
      TITAN_ASSIGN_OR_RETURN(const Distance distance, distance_of(*of_a, tensor, *of_b, *other.mapped()));
      report.numbers(tensor, *other.mapped(), distance);
    }
  }
  for (const NamedTensor& tensor : of_b->tensors()) {
    if (others.contains(tensor.key)) report.only("B", tensor.key, tensor);
  }
  return report.print(out);
}

}  // namespace titan::tools
