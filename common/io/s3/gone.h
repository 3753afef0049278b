#pragma once

// A small object that says that nothing is here. Where an object must not appear any more, or not stay, one of these is
// put in its place: unlike a deletion a store does it on a condition, and a late write that expects what was there
// before fails. To readers of files (object_files.h) it does not exist.

#include <string>

#include "absl/status/statusor.h"
#include "common/io/s3/client.h"

namespace titan::s3 {

// A new one, unlike any other, so that its etag is its own.
std::string gone_mark();

// Whether the object is one; `size` as a listing or head() tells it, so that hardly any object has to be read.
absl::StatusOr<bool> is_gone(Client& client, const std::string& key, int64_t size);

// A request is refused once it is older than 15 minutes, so that no late write can follow a mark of this age.
inline constexpr absl::Duration kMarkStays = absl::Hours(1);

}  // namespace titan::s3
