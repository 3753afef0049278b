#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

// Small helpers for the readers of tokenizer files.
namespace titan::data {

inline absl::Status bad(const std::string& what) { return absl::InvalidArgumentError(what); }

// The value of an optional key; null counts as absent.
inline const nlohmann::json* member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

inline std::string text_of(const nlohmann::json& object, const char* key) {
  const nlohmann::json* value = member(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

inline bool flag(const nlohmann::json& object, const char* key, bool otherwise = false) {
  const nlohmann::json* value = member(object, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

inline constexpr int64_t kMaxId = (1 << 22) - 1;  // Far beyond any vocabulary; tables are as long as the largest id.

inline absl::StatusOr<int32_t> checked_id(const std::string& token, const nlohmann::json& id) {
  const int64_t number = id.is_number_integer() ? id.get<int64_t>() : -1;
  if (number < 0 || number > kMaxId) {
    return bad(absl::StrCat("token \"", token, "\" has no id between 0 and ", kMaxId));
  }
  return static_cast<int32_t>(number);
}

}  // namespace titan::data
