#include "common/io/jinja/arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::jinja {

absl::StatusOr<Bound> Bound::bind(const Arguments& arguments, std::initializer_list<std::string_view> parameters) {
  Bound bound;
  bound.names_.assign(parameters.begin(), parameters.end());
  bound.values_.resize(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes at most ", parameters.size(), " arguments, got ", arguments.positional.size()));
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.values_.begin());
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(bound.names_.begin(), bound.names_.end(), name);
    if (found == bound.names_.end()) return absl::InvalidArgumentError(absl::StrCat("has no argument \"", name, "\""));
    std::optional<Value>& place = bound.values_[found - bound.names_.begin()];
    if (place) return absl::InvalidArgumentError(absl::StrCat("got \"", name, "\" twice"));
    place = value;
  }
  return bound;
}

const Value& Bound::at(size_t i) const {
  static const Value kNone = None();
  return values_[i] ? *values_[i] : kNone;
}

absl::StatusOr<int64_t> Bound::whole(size_t i, int64_t otherwise) const {
  if (!values_[i]) return otherwise;
  if (const auto number = as_integer(at(i))) return *number;
  return absl::InvalidArgumentError(absl::StrCat("\"", names_[i], "\" must be an integer, but is ", type_name(at(i))));
}

absl::StatusOr<std::string> Bound::text(size_t i, std::string otherwise) const {
  if (!values_[i]) return otherwise;
  if (const std::string* text = as_text(at(i))) return *text;
  return absl::InvalidArgumentError(absl::StrCat("\"", names_[i], "\" must be a string, but is ", type_name(at(i))));
}

absl::StatusOr<std::optional<std::string>> Bound::optional_text(size_t i) const {
  if (!values_[i] || is_none(at(i))) return std::nullopt;
  absl::StatusOr<std::string> found = text(i, "");
  if (!found.ok()) return found.status();
  return *std::move(found);
}

}  // namespace titan::jinja
