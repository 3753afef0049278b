#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/hub/folder.h"
#include "common/hub/listing.h"

namespace titan::hub {

// Reads an open file and compares it with the SHA-256 of a large object, or else the SHA-1 of a git blob. `idle` is
// called now and then; what it says ends the reading. Errors: DataLoss when it is another file.
absl::Status check_content(const File& file, const RemoteFile& remote, const std::function<absl::Status()>& idle);

// 64 hexadecimal digits.
std::string sha256_hex(const std::string& text);

}  // namespace titan::hub
