#pragma once

// Reads the keys of a config.json object.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// Whether a value has more levels than `levels`. Copying and writing JSON recurses, so that a hostile file could
// overflow the stack.
bool is_nested_deeper(const nlohmann::json& value, int levels);
inline constexpr int kMostLevels = 16;  // Limit for a config.json and for a model's numbers.

// Reads keys of one JSON object. The first key that cannot be read sets the status; later errors are ignored.
class Keys {
 public:
  // `prefix` precedes the keys in messages: "rope_scaling."; `file` is the file that they name.
  explicit Keys(nlohmann::json object, std::string prefix = "", std::string file = "config.json")
      : object_(std::move(object)), prefix_(std::move(prefix)), file_(std::move(file)) {}

  // A null is treated as a missing key.
  bool has(const std::string& key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  nlohmann::json at(const std::string& key) const { return has(key) ? object_.at(key) : nlohmann::json(); }
  const nlohmann::json& object() const { return object_; }

  // Read a key of the given type. Leave `into` unchanged when the object does not have the key.
  void take(const std::string& key, int64_t& into);
  void take(const std::string& key, double& into);
  void take(const std::string& key, bool& into);  // A number is true unless it is 0.
  void take(const std::string& key, std::string& into);

  // Read a key that must be present and above 0.
  void need(const std::string& key, int64_t& into);
  void need(const std::string& key, double& into);

  // Checks a setting for which all families support only one value. A missing key is accepted.
  template <typename T>
  void expect(const std::string& key, const T& only) {
    T there = only;
    take(key, there);
    if (there != only) refuse(key, absl::StrCat("only ", nlohmann::json(only).dump()));
  }

  // Sets the error "config.json: KEY is VALUE; EXPECTED is supported".
  void refuse(const std::string& key, const std::string& expected);

  const absl::Status& status() const { return status_; }
  void fail(const absl::Status& status) { status_.Update(status); }

 private:
  nlohmann::json object_;
  std::string prefix_, file_;
  absl::Status status_;
};

}  // namespace titan::hf_config
