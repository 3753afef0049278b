#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"

namespace titan::core {

// Maps each request_id to the job that it created, so that a repeated request gets the same job. Ignores empty ids.
class Requests {
 public:
  void add(const std::string& request_id, const std::string& uid);
  void add_if_new(const std::string& request_id, const std::string& uid);
  void forget(const std::string& request_id, const std::string& uid);  // Does nothing if the id belongs to another job.
  const std::string* find(const std::string& request_id) const;        // Uid, or nullptr.

 private:
  absl::flat_hash_map<std::string, std::string> uids_;
};

}  // namespace titan::core
