#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// The arguments of a call, bound to parameters.
class Bound {
 public:
  // Binds arguments to parameters. Errors: InvalidArgument for too many arguments, or for a name that is unknown or
  // given twice.
  static absl::StatusOr<Bound> bind(const Arguments& arguments, std::initializer_list<std::string_view> parameters);

  bool has(size_t i) const { return values_[i].has_value() && !is_undefined(*values_[i]); }
  const Value& at(size_t i) const;  // None when it is not given.
  // Return `otherwise` when the argument is not given. Errors: InvalidArgument for a value of another type.
  absl::StatusOr<int64_t> whole(size_t i, int64_t otherwise) const;
  absl::StatusOr<std::string> text(size_t i, std::string otherwise) const;
  absl::StatusOr<std::optional<std::string>> optional_text(size_t i) const;  // Nothing for None or a missing argument.
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(at(i)) : otherwise; }

 private:
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace titan::jinja
