#pragma once

// "s3://BUCKET/KEY": where something lies in an object store.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace titan::s3 {

struct Location {
  std::string bucket;
  std::string key;  // No '/' at either end; "" for the whole bucket.
};

// Whether it begins as such a path does.
bool is_location(std::string_view path);

// Errors: InvalidArgument that says what such a path looks like.
absl::StatusOr<Location> parse_location(const std::string& path);

std::string to_text(const Location& location);

}  // namespace titan::s3
