#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

// Helpers for the readers of tokenizer files.
namespace titan::data {

inline absl::Status bad(const std::string& what) { return absl::InvalidArgumentError(what); }

// Returns the value of an optional key, or null. A JSON null counts as absent.
inline const nlohmann::json* member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Returns the string under `key`; empty if there is none.
inline std::string text_of(const nlohmann::json& object, const char* key) {
  const nlohmann::json* value = member(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// Returns the boolean under `key`, or `otherwise`.
inline bool flag(const nlohmann::json& object, const char* key, bool otherwise = false) {
  const nlohmann::json* value = member(object, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

inline constexpr int64_t kMaxId = (1 << 22) - 1;  // Far beyond any vocabulary. Tables are as long as the largest id.

// Returns `id` as a number. Errors: InvalidArgument, names the token, unless it is an integer from 0 to kMaxId.
inline absl::StatusOr<int32_t> checked_id(const std::string& token, const nlohmann::json& id) {
  const int64_t number = id.is_number_integer() ? id.get<int64_t>() : -1;
  if (number < 0 || number > kMaxId) {
    return bad(absl::StrCat("token \"", token, "\" has no id between 0 and ", kMaxId));
  }
  return static_cast<int32_t>(number);
}

}  // namespace titan::data
