#include "common/plan/hf_config/keys.h"

#include <algorithm>
#include <cmath>

namespace titan::hf_config {

bool is_nested_deeper(const nlohmann::json& value, int levels) {
  if (!value.is_structured()) return false;
  if (levels == 0) return true;
  return std::any_of(value.begin(), value.end(),
                     [levels](const nlohmann::json& item) { return is_nested_deeper(item, levels - 1); });
}

namespace {
constexpr int64_t kLargest = int64_t{1} << 40;
constexpr size_t kMaxShownValueLength = 80;
}  // namespace

void Keys::take(const std::string& key, int64_t& into) {
  if (!has(key)) return;
  const nlohmann::json& there = object_.at(key);
  if (there.is_number_integer() && there >= 0 && there < kLargest) {
    into = there.get<int64_t>();
  } else if (there.is_number_float() && there >= 0 && there < kLargest &&
             std::floor(there.get<double>()) == there.get<double>()) {
    into = static_cast<int64_t>(there.get<double>());  // Some tools write 4096.0.
  } else {
    refuse(key, "an integer");
  }
}

void Keys::take(const std::string& key, double& into) {
  if (!has(key)) return;
  if (!object_.at(key).is_number()) return refuse(key, "a number");
  into = object_.at(key).get<double>();
}

void Keys::take(const std::string& key, bool& into) {
  if (!has(key)) return;
  const nlohmann::json& there = object_.at(key);
  if (there.is_boolean()) {
    into = there.get<bool>();
  } else if (there.is_number()) {
    into = there != 0;
  } else {
    refuse(key, "true or false");
  }
}

void Keys::take(const std::string& key, std::string& into) {
  if (!has(key)) return;
  if (!object_.at(key).is_string()) return refuse(key, "a text");
  into = object_.at(key).get<std::string>();
}

void Keys::need(const std::string& key, int64_t& into) {
  into = 0;
  take(key, into);
  if (into <= 0) refuse(key, "an integer above 0");
}

void Keys::need(const std::string& key, double& into) {
  into = 0;
  take(key, into);
  if (!(into > 0) || !std::isfinite(into)) refuse(key, "a number above 0");
}

void Keys::refuse(const std::string& key, const std::string& expected) {
  if (!status_.ok()) return;
  const bool is_there = object_.contains(key);
  const std::string there = is_there ? object_.at(key).dump() : "missing";
  status_ =
      absl::InvalidArgumentError(absl::StrCat(file_, ": ", prefix_, key, " is ", there.substr(0, kMaxShownValueLength),
                                              "; ", expected, is_there ? " is supported" : " is required"));
}

}  // namespace titan::hf_config
