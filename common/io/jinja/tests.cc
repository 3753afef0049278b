#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"
#include "common/io/jinja/repr.h"
#include "common/io/jinja/sequences.h"
#include "common/io/jinja/text.h"

namespace titan::jinja {
namespace {

bool is_real(const Value& value) { return std::holds_alternative<double>(value); }
bool is_flag(const Value& value) { return std::holds_alternative<bool>(value); }

bool has_length(const Value& value) {
  const Sequence* sequence = as_sequence(value);
  return is_undefined(value) || as_text(value) || as_mapping(value) ||
         (sequence != nullptr && sequence->kind != Sequence::Kind::kGenerator &&
          sequence->kind != Sequence::Kind::kView);
}

// Tests without an argument.
using OfAKind = bool (*)(const Value&);
const std::map<std::string_view, OfAKind>& kinds() {
  static const auto* const kKinds = new std::map<std::string_view, OfAKind>{
      {"boolean", is_flag},
      {"callable",
       [](const Value& value) {
         return std::holds_alternative<std::shared_ptr<const Callable>>(value) || is_undefined(value);
       }},
      {"defined", [](const Value& value) { return !is_undefined(value); }},
      {"false", [](const Value& value) { return is_flag(value) && !truth(value); }},
      {"float", is_real},
      {"integer", [](const Value& value) { return std::holds_alternative<int64_t>(value); }},
      {"iterable",
       [](const Value& value) {
         return is_undefined(value) || as_text(value) || as_mapping(value) || as_sequence(value) != nullptr;
       }},
      {"mapping", [](const Value& value) { return as_mapping(value) != nullptr; }},
      {"none", is_none},
      {"number", [](const Value& value) { return as_number(value).has_value(); }},
      {"sequence", has_length},
      {"string", [](const Value& value) { return as_text(value) != nullptr; }},
      {"true", [](const Value& value) { return is_flag(value) && truth(value); }},
      {"undefined", is_undefined}};
  return *kKinds;
}

// Tests with another value as the argument.
using Relation = absl::StatusOr<bool> (*)(Run&, const Value&, const Value&);

// Returns whether the value is below, equal to or above the other one, for each relation whose flag is set.
template <bool kBelow, bool kSame, bool kAbove>
absl::StatusOr<bool> ordered(Run&, const Value& value, const Value& other) {
  TITAN_ASSIGN_OR_RETURN(const int order, compare(value, other));
  return (kBelow && order < 0) || (kSame && order == 0) || (kAbove && order > 0);
}

absl::StatusOr<bool> same(Run&, const Value& value, const Value& other) {
  const bool simple = is_none(value) || is_flag(value);
  if (!simple && !is_none(other) && !is_flag(other)) {
    return absl::InvalidArgumentError("is supported only for none, true and false; use \"eq\"");
  }
  return value.index() == other.index() && equal(value, other);
}

absl::StatusOr<bool> divisible(Run&, const Value& value, const Value& other) {
  const auto number = as_number(value), by = as_number(other);
  if (!number || !by || *by == 0) return absl::InvalidArgumentError("takes a number and a divisor other than 0");
  const auto whole = as_integer(value), by_whole = as_integer(other);
  if (whole && by_whole) return *by_whole == -1 || *whole % *by_whole == 0;
  return std::fmod(*number, *by) == 0;
}

const std::map<std::string_view, Relation>& relations() {
  constexpr Relation kEqual = [](Run&, const Value& a, const Value& b) -> absl::StatusOr<bool> { return equal(a, b); };
  constexpr Relation kUnequal = [](Run&, const Value& a, const Value& b) -> absl::StatusOr<bool> {
    return !equal(a, b);
  };
  constexpr Relation kBelow = ordered<true, false, false>;
  constexpr Relation kAbove = ordered<false, false, true>;
  constexpr Relation kAtMost = ordered<true, true, false>;
  constexpr Relation kAtLeast = ordered<false, true, true>;
  static const auto* const kRelations = new std::map<std::string_view, Relation>{
      {"divisibleby", divisible},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"==", kEqual},
      {"ne", kUnequal},
      {"!=", kUnequal},
      {"lt", kBelow},
      {"lessthan", kBelow},
      {"<", kBelow},
      {"gt", kAbove},
      {"greaterthan", kAbove},
      {">", kAbove},
      {"le", kAtMost},
      {"<=", kAtMost},
      {"ge", kAtLeast},
      {">=", kAtLeast},
      {"sameas", same},
      {"in", [](Run& run, const Value& a, const Value& b) { return contains(run, b, a); }}};
  return *kRelations;
}

absl::StatusOr<bool> of_a_kind(Run& run, const std::string& name, const Value& value) {
  if (name == "odd" || name == "even") {
    const auto number = as_number(value);
    if (!number) return absl::InvalidArgumentError("takes a number");
    const auto whole = as_integer(value);
    const double rest = whole ? static_cast<double>(std::abs(*whole % 2)) : std::fmod(std::fmod(*number, 2) + 2, 2);
    return rest == (name == "odd" ? 1 : 0);
  }
  TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run, value));
  TITAN_ASSIGN_OR_RETURN(const std::string cased, with_case(text, name == "lower" ? Case::kLower : Case::kUpper));
  TITAN_ASSIGN_OR_RETURN(const std::string other, with_case(text, name == "lower" ? Case::kUpper : Case::kLower));
  return cased == text && other != text;  // There is a letter.
}

absl::StatusOr<bool> tested(Run& run, const std::string& name, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(run.spend(extent_of(value).weight));
  if (const auto relation = relations().find(name); relation != relations().end()) {
    if (arguments.positional.size() != 1 || !arguments.keywords.empty()) {
      return absl::InvalidArgumentError("takes one value");
    }
    return relation->second(run, value, arguments.positional[0]);
  }
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  if (const auto kind = kinds().find(name); kind != kinds().end()) return kind->second(value);
  return of_a_kind(run, name, value);
}

}  // namespace

bool is_test(std::string_view name) {
  return kinds().contains(name) || relations().contains(name) || name == "odd" || name == "even" || name == "lower" ||
         name == "upper";
}

absl::StatusOr<bool> apply_test(Run& run, const std::string& name, const Value& value, const Arguments& arguments) {
  absl::StatusOr<bool> result = tested(run, name, value, arguments);
  if (!result.ok()) return annotate(result.status(), absl::StrCat("the test \"", name, "\""));
  return result;
}

}  // namespace titan::jinja
