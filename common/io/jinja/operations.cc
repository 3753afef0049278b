#include "common/io/jinja/operations.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/sequences.h"

namespace titan::jinja {
namespace {

absl::Status no_such_operation(const std::string& name, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (const auto* undefined = std::get_if<Undefined>(value)) return absl::InvalidArgumentError(undefined->why);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" of ", type_name(left), " and ", type_name(right), " is not supported"));
}

absl::Status beyond() { return absl::InvalidArgumentError("the result is an integer beyond 64 bits"); }

Result power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  int64_t result = 1;
  for (; exponent > 0 && base != 1 && base != 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return beyond();
    if (base == -1) exponent = 1 + exponent % 2;  // The result alternates.
  }
  return base == 0 && exponent > 0 ? 0 : result;
}

Result of_whole(const std::string& name, int64_t a, int64_t b) {
  int64_t result = 0;
  if (name == "+") return __builtin_add_overflow(a, b, &result) ? Result(beyond()) : Result(result);
  if (name == "-") return __builtin_sub_overflow(a, b, &result) ? Result(beyond()) : Result(result);
  if (name == "*") return __builtin_mul_overflow(a, b, &result) ? Result(beyond()) : Result(result);
  if (name == "**") return power(a, b);
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (name == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return name == "%" ? Result(int64_t{0}) : of_whole("-", 0, a);
  const int64_t rest = (a % b + b) % b;  // Takes the sign of b, as in Python.
  if (name == "%") return rest;
  return (a - rest) / b;
}

Result of_real(const std::string& name, double a, double b) {
  if (name == "+") return a + b;
  if (name == "-") return a - b;
  if (name == "*") return a * b;
  if (name == "**") return std::pow(a, b);
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (name == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return name == "%" ? rest : std::round((a - rest) / b);
}

Result repeated(Run& run, const Value& value, int64_t times) {
  times = std::max<int64_t>(0, times);
  if (const std::string* text = as_text(value)) {
    const auto size = static_cast<int64_t>(text->size());
    if (size > 0 && times > (int64_t{1} << 40) / size) return absl::ResourceExhaustedError("the string is too long");
    TITAN_RETURN_IF_ERROR(run.check_bytes(size * times));
    std::string out;
    for (int64_t i = 0; size > 0 && i < times; ++i) out += *text;
    return out;
  }
  const Sequence& sequence = *as_sequence(value);
  const int64_t weight = sequence.extent.weight;
  if (times > (int64_t{1} << 40) / weight) return absl::ResourceExhaustedError("the list is too long");
  TITAN_RETURN_IF_ERROR(run.spend(weight * times));
  std::vector<Value> items;
  for (int64_t i = 0; !sequence.items.empty() && i < times; ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return list(std::move(items), sequence.kind);
}

bool is_plain_list(const Value& value) {
  const Sequence* sequence = as_sequence(value);
  return sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple);
}

Result joined_lists(Run& run, const Sequence& left, const Sequence& right) {
  TITAN_RETURN_IF_ERROR(run.spend(left.extent.weight + right.extent.weight));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return list(std::move(items), left.kind);
}

}  // namespace

Result binary_operation(Run& run, const std::string& name, const Value& left, const Value& right) {
  if (name == "%" && as_text(left) != nullptr) return absl::InvalidArgumentError("\"%\" of a string is not supported");
  const auto a = as_integer(left), b = as_integer(right);
  if (a && b) return of_whole(name, *a, *b);
  const auto x = as_number(left), y = as_number(right);
  if (x && y) return of_real(name, *x, *y);
  if (name == "+" && as_text(left) != nullptr && as_text(right) != nullptr) {
    TITAN_RETURN_IF_ERROR(run.check_bytes(static_cast<int64_t>(as_text(left)->size() + as_text(right)->size())));
    return absl::StrCat(*as_text(left), *as_text(right));
  }
  const bool lists = is_plain_list(left) && is_plain_list(right) && as_sequence(left)->kind == as_sequence(right)->kind;
  if (name == "+" && lists) return joined_lists(run, *as_sequence(left), *as_sequence(right));
  const auto many = [](const Value& value) { return as_text(value) != nullptr || is_plain_list(value); };
  if (name == "*" && many(left) && b) return repeated(run, left, *b);
  if (name == "*" && a && many(right)) return repeated(run, right, *a);
  return no_such_operation(name, left, right);
}

Result negative(const Value& value) {
  if (const auto whole = as_integer(value)) return of_whole("-", 0, *whole);
  if (const auto* real = std::get_if<double>(&value)) return -*real;
  return absl::InvalidArgumentError(absl::StrCat("cannot negate a value of type ", type_name(value)));
}

absl::StatusOr<bool> comparison(Run& run, const std::string& name, const Value& left, const Value& right) {
  if (name == "in" || name == "not in") {
    TITAN_ASSIGN_OR_RETURN(const bool found, contains(run, right, left));
    return found == (name == "in");
  }
  TITAN_RETURN_IF_ERROR(run.spend(std::min(extent_of(left).weight, extent_of(right).weight)));
  if (name == "==" || name == "!=") return equal(left, right) == (name == "==");
  if (is_undefined(left) || is_undefined(right)) return no_such_operation(name, left, right);
  if (std::isnan(as_number(left).value_or(0)) || std::isnan(as_number(right).value_or(0))) return false;
  TITAN_ASSIGN_OR_RETURN(const int order, compare(left, right));
  if (name == "<") return order < 0;
  if (name == "<=") return order <= 0;
  return name == ">" ? order > 0 : order >= 0;
}

}  // namespace titan::jinja
