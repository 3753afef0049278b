#pragma once

// Parses "s3://BUCKET/KEY", a location in an object store.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace titan::s3 {

struct Location {
  std::string bucket;
  std::string key;  // No '/' at either end; "" for the whole bucket.
};

// Returns whether the path begins with s3://.
bool is_location(std::string_view path);

// Parses such a path. Errors: InvalidArgument, which explains its form.
absl::StatusOr<Location> parse_location(const std::string& path);

std::string to_text(const Location& location);

}  // namespace titan::s3
