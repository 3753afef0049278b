#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// Returns whether an error already names its place in the template.
inline bool has_position(const absl::Status& status) { return absl::StartsWith(status.message(), "line "); }

// Limits of one rendering, so that an endless template is reported as an error.
struct RenderLimits {
  int64_t steps = 20'000'000;
  int64_t bytes = int64_t{64} << 20;  // Size of one text, including the whole output.
  int depth = 400;                    // Nested expressions, statements and macros.
};

// State of one rendering: what it has used, and the objects that live as long as it does.
class Run {
 public:
  explicit Run(const RenderLimits& limits) : limits_(limits) {}

  // These count or check what the rendering uses. Errors: ResourceExhausted beyond a limit.
  absl::Status spend(int64_t steps) {
    if ((spent_ += steps) <= limits_.steps) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the template takes more than ", limits_.steps, " steps"));
  }
  absl::Status check_bytes(int64_t bytes) {
    if (bytes <= limits_.bytes) return spend(bytes / 64);
    return absl::ResourceExhaustedError(
        absl::StrCat("the template makes a text of more than ", limits_.bytes, " bytes"));
  }
  absl::Status check_value(const Value& value) {
    const Extent extent = extent_of(value);
    if (extent.depth <= kMaxValueDepth && extent.weight <= kHeaviestValue) return absl::OkStatus();
    return absl::ResourceExhaustedError("the template makes a value that is too large or too deep");
  }
  absl::Status enter() {
    if (++depth_ <= limits_.depth) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the template is nested or calls itself more than ", limits_.depth, " levels deep"));
  }
  void leave() { --depth_; }

  Namespace* add_namespace() { return &namespaces_.emplace_back(); }

 private:
  static constexpr int kMaxValueDepth = 100;
  static constexpr int64_t kHeaviestValue = 16'000'000;

  const RenderLimits limits_;
  int64_t spent_ = 0;
  int depth_ = 0;
  std::deque<Namespace> namespaces_;
};

}  // namespace titan::jinja
