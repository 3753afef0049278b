#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::store {

// Where the controllers' store is in etcd.
struct EtcdAddress {
  std::vector<std::string> members;  // HOST:PORT of each.
  std::string prefix;                // Of every key; ends with a slash.
};

// "etcd://HOST:PORT,HOST:PORT/PREFIX"; without a prefix "titan/". Errors: InvalidArgument, with the form.
absl::StatusOr<EtcdAddress> parse_etcd_address(const std::string& text);

}  // namespace titan::store
