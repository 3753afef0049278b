#pragma once

// Verifies that local files are the hub's: by reading their content, or by the record of files that were read before.

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/io/hub/api.h"
#include "common/io/hub/folder.h"

namespace titan::hub {

// Reads an open file and compares it with the SHA-256 of a large object, or else the SHA-1 of a git blob. `idle` is
// called now and then; what it says ends the reading. Errors: DataLoss when it is another file.
absl::Status check_content(const host::Descriptor& file, const RemoteFile& remote,
                           const std::function<absl::Status()>& idle);

// Which files of a folder were seen to be the hub's, so that nobody reads them through again. A file that was written
// to since, by its size and time, does not count.
class Inventory {
 public:
  // Nothing when there is no record, or none that makes sense.
  static Inventory load(const Folder& folder);
  absl::Status save(const Folder& folder) const;

  bool has(const RemoteFile& remote, const struct stat& about) const;
  void add(const RemoteFile& remote, const struct stat& about);

 private:
  struct Entry {
    std::string digest;
    int64_t size = 0, changed = 0;  // Nanoseconds.
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace titan::hub
