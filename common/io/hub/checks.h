#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/io/hub/folder.h"
#include "common/io/hub/listing.h"

namespace titan::hub {

// Reads an open file and compares it with the SHA-256 of a large object, or else the SHA-1 of a git blob. `idle` is
// called now and then; what it says ends the reading. Errors: DataLoss when it is another file.
absl::Status check_content(const host::Descriptor& file, const RemoteFile& remote,
                           const std::function<absl::Status()>& idle);

}  // namespace titan::hub
