#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace titan::host {

// Writes all of `bytes` to `descriptor`, in as many calls as that takes. Errors: those of write(2), with `path` in the
// message; ResourceExhausted when the disk is full, which may have taken a part.
absl::Status write_all(int descriptor, std::string_view bytes, const std::string& path);

}  // namespace titan::host
