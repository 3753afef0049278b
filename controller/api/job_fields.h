#pragma once

// Names the fields of a job that lists can be filtered and sorted by, and parses the order of lists (AIP-132).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "controller/core/view.h"

namespace titan::api {

enum class FieldKind { kText, kState, kNumber, kTime };

// Nothing when it is not set; times in nanoseconds since 1970. Text lives as long as the view.
using FieldValue = std::variant<std::monostate, absl::string_view, int64_t>;

// A field of a job, and how it is read.
struct Field {
  FieldKind kind = FieldKind::kText;
  std::function<FieldValue(const core::JobView&)> value;
};

// The field with that path: "state", "labels.team", "progress.step". Nothing when there is none.
std::optional<Field> find_field(const std::string& path);
// For messages: "state, name, ...".
const std::vector<std::string>& field_names();

// The order of a list: "priority desc, create_time".
class OrderBy {
 public:
  // Fields with commas between, each with "desc" or "asc" after it. Errors: InvalidArgument (ORDER_BY_INVALID).
  static absl::StatusOr<OrderBy> parse(const std::string& text);

  // A strict order of all jobs: what is not set comes last, and of jobs that are alike the newest first.
  bool before(const core::JobView& a, const core::JobView& b) const;

  // A job's place, for the token of the page after it.
  std::string place(const core::JobView& job) const;
  // Whether a job comes after that place, also when the job there has changed or gone. Errors: InvalidArgument for what
  // is not a place of this order.
  absl::StatusOr<std::function<bool(const core::JobView&)>> after(const std::string& place) const;

 private:
  struct Key {
    Field field;
    bool descending = false;
  };
  using Values = std::vector<FieldValue>;
  Values values(const core::JobView& job) const;
  bool before(const Values& a, int64_t order_a, const Values& b, int64_t order_b) const;

  std::vector<Key> keys_;
};

}  // namespace titan::api
