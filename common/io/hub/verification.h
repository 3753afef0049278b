#pragma once

// Verifies that local files are the hub's, by reading their content or by the record of files that were read before.

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/io/hub/api.h"
#include "common/io/hub/folder.h"

namespace titan::hub {

// Reads an open file and compares it with the SHA-256 of a large object, or else the SHA-1 of a git blob. `idle` is
// called regularly, and its error ends the read. Errors: DataLoss when the content differs.
absl::Status check_content(const host::Descriptor& file, const RemoteFile& remote,
                           const std::function<absl::Status()>& idle);

// Records which files of a folder were verified as the hub's, so that they are not read again. A file whose size or
// modification time has changed is verified again.
class Inventory {
 public:
  // Returns an empty inventory unless there is a valid record.
  static Inventory load(const Folder& folder);
  absl::Status save(const Folder& folder) const;

  bool has(const RemoteFile& remote, const struct stat& about) const;
  void add(const RemoteFile& remote, const struct stat& about);

 private:
  struct Entry {
    std::string digest;
    int64_t size = 0, changed = 0;  // `changed`: modification time in nanoseconds.
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace titan::hub
