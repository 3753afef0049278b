#pragma once

// A small object that marks its key as deleted. It replaces an object that must be deleted or must never appear. Unlike
// a deletion, the replacement can have a condition, and a late write that expects the previous object fails.
// ObjectFiles treats it as a missing file.

#include <string>

#include "absl/status/statusor.h"
#include "common/io/s3/client.h"

namespace titan::s3 {

// Returns a new mark, unlike any other, so that its etag is unique.
std::string make_tombstone();

// Returns whether the object is a mark or missing. `size` is from a listing or head(), so that hardly any object has to
// be read.
absl::StatusOr<bool> is_tombstone(S3Client& client, const std::string& key, int64_t size);

// Stores refuse a request that is older than 15 minutes, so no late write can follow a mark of this age.
inline constexpr absl::Duration kTombstoneLifetime = absl::Hours(1);

}  // namespace titan::s3
