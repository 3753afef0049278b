// Implements the functions that every chat template has.
#include <algorithm>
#include <ctime>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"
#include "common/io/jinja/repr.h"

namespace titan::jinja {
namespace {

constexpr std::string_view kFunctions[] = {"dict", "namespace", "raise_exception", "range", "strftime_now"};

absl::StatusOr<Value> range(Run& run, const Arguments& arguments) {
  constexpr int64_t kMaxLength = 100'000;  // The limit of Jinja's sandbox.
  std::vector<int64_t> numbers;
  for (const Value& value : arguments.positional) {
    const auto number = as_integer(value);
    if (!number) return absl::InvalidArgumentError("takes integers");
    numbers.push_back(*number);
  }
  if (numbers.empty() || numbers.size() > 3 || !arguments.keywords.empty()) {
    return absl::InvalidArgumentError("takes one to three integers");
  }
  if (numbers.size() == 1) numbers.insert(numbers.begin(), 0);
  const int64_t step = numbers.size() == 3 ? numbers[2] : 1;
  if (step == 0) return absl::InvalidArgumentError("the step cannot be 0");
  std::vector<Value> all;
  for (__int128 at = numbers[0]; step > 0 ? at < numbers[1] : at > numbers[1]; at += step) {
    all.emplace_back(static_cast<int64_t>(at));
    if (static_cast<int64_t>(all.size()) > kMaxLength) {
      return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxLength, " numbers"));
    }
  }
  TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(all.size())));
  return list(std::move(all), Sequence::Kind::kRange);
}

absl::StatusOr<Mapping> entries_of(const Arguments& arguments) {
  if (arguments.positional.size() > 1) return absl::InvalidArgumentError("takes one mapping and keyword arguments");
  Mapping entries;
  if (!arguments.positional.empty()) {
    const Mapping* given = as_mapping(arguments.positional[0]);
    if (given == nullptr) return absl::InvalidArgumentError("takes one mapping and keyword arguments");
    entries = *given;
  }
  for (const auto& [name, value] : arguments.keywords) entries.set(name, value);
  return entries;
}

absl::StatusOr<Value> raise(Run& run, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"message"}));
  TITAN_ASSIGN_OR_RETURN(const std::string message, to_text(run, bound.at(0)));
  return absl::InvalidArgumentError(absl::StrCat("the template says: ", message));
}

// Formats a fixed day instead of today, so that a job that resumes tomorrow reads the same text.
absl::StatusOr<Value> date(const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"format"}));
  TITAN_ASSIGN_OR_RETURN(const std::string format, bound.text(0, ""));
  std::tm day{};
  day.tm_year = 124;
  day.tm_mon = 6;
  day.tm_mday = 26;
  day.tm_wday = 5;
  day.tm_yday = 207;
  constexpr std::string_view kParts = "YmdBbAaHMSjy%";
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') continue;
    if (++at < format.size() && kParts.find(format[at]) != std::string_view::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat("\"", format, "\" has an unsupported conversion"));
  }
  if (format.size() > 256) return absl::InvalidArgumentError("the format is too long");
  char text[4096];
  return std::string(text, std::strftime(text, sizeof text, format.c_str(), &day));
}

absl::StatusOr<Value> called(Run& run, const std::string& name, const Arguments& arguments) {
  if (name == "range") return range(run, arguments);
  if (name == "raise_exception") return raise(run, arguments);
  if (name == "strftime_now") return date(arguments);
  TITAN_ASSIGN_OR_RETURN(Mapping entries, entries_of(arguments));
  if (name == "dict") return mapping(std::move(entries));
  TITAN_RETURN_IF_ERROR(run.spend(1));
  Namespace* made = run.add_namespace();
  made->attributes = std::move(entries);
  return made;
}

}  // namespace

bool is_function(std::string_view name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

absl::StatusOr<Value> call_function(Run& run, const std::string& name, const Arguments& arguments) {
  absl::StatusOr<Value> result = called(run, name, arguments);
  if (!result.ok() && name != "raise_exception") return annotate(result.status(), name);
  return result;
}

}  // namespace titan::jinja
