#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace titan::store {

// A value as it lies in etcd: the body behind a CRC-32 over key and body, so that damage and a value under another key
// are found.
std::string seal(const std::string& key, const std::string& body);
// The body. Errors: DataLoss naming the key.
absl::StatusOr<std::string> unseal(const std::string& key, const std::string& value);

template <typename Message>
std::string seal_message(const std::string& key, const Message& message) {
  return seal(key, message.SerializeAsString());
}

absl::Status not_readable(const std::string& key);

// Errors: DataLoss naming the key.
template <typename Message>
absl::StatusOr<Message> unseal_message(const std::string& key, const std::string& value) {
  const absl::StatusOr<std::string> body = unseal(key, value);
  if (!body.ok()) return body.status();
  Message message;
  if (!message.ParseFromString(*body)) return not_readable(key);
  return message;
}

}  // namespace titan::store
