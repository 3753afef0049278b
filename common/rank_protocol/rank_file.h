#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace titan::rank_protocol {

// Opens what a rank has left, for a node's daemon or shim, which may do more than the rank may: no link is followed, no
// pipe waited at, and a file that has a second name may be somebody else's. `flags`: O_RDONLY or O_RDWR. The descriptor
// is the caller's to close. Errors: NotFound and the system's, InvalidArgument for what is no plain file of one name.
absl::StatusOr<int> open_rank_file(const std::string& path, int flags);

// Its first bytes, at most `most`. Errors: as above, and those of reading.
absl::StatusOr<std::string> read_rank_file(const std::string& path, size_t most);

}  // namespace titan::rank_protocol
