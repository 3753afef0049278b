#pragma once

// The two answers of a hub that are read: of /api/.../revision/REV and of /api/.../tree/COMMIT.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/hub/names.h"

namespace titan::hub {

struct RemoteFile {
  std::string name;    // Passed check_file_name.
  int64_t size = 0;    // Bytes.
  std::string oid;     // Of the git blob: the file itself, or a pointer to it.
  std::string sha256;  // Of files kept outside git; else empty.

  // What tells this content from any other.
  const std::string& digest() const { return sha256.empty() ? oid : sha256; }
};

// The commit that the revision is now. Errors: DataLoss.
absl::StatusOr<std::string> parse_info(const std::string& json);
// The files of one page, without folders. Errors: DataLoss, or InvalidArgument for a name that leads out of a folder.
absl::StatusOr<std::vector<RemoteFile>> parse_tree(const std::string& json);

}  // namespace titan::hub
