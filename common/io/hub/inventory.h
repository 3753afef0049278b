#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/io/hub/folder.h"
#include "common/io/hub/listing.h"

namespace titan::hub {

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
