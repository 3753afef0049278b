#pragma once

// The fields of a job that lists can be filtered and sorted by.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "controller/core/view.h"

namespace titan::api {

enum class FieldKind { kText, kState, kNumber, kTime };

// Nothing when it is not set; times in nanoseconds since 1970. Text lives as long as the view.
using FieldValue = std::variant<std::monostate, absl::string_view, int64_t>;

struct Field {
  FieldKind kind = FieldKind::kText;
  std::function<FieldValue(const core::JobView&)> value;
};

// By its path: "state", "labels.team", "progress.step". Nothing when there is none.
std::optional<Field> find_field(const std::string& path);
// For messages: "state, name, ...".
const std::vector<std::string>& field_names();

}  // namespace titan::api
