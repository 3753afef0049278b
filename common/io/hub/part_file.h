#pragma once

// A partial download: FILE.part holds bytes at their offsets, FILE.part.json records which of them arrived.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/io/http/ranges.h"
#include "common/io/hub/api.h"
#include "common/io/hub/client.h"
#include "common/io/hub/folder.h"

namespace titan::hub {

// Returns the recorded parts of this content; nothing when the record is for other content or invalid.
http::Ranges recorded_parts(const Folder& folder, const RemoteFile& remote);

// Thread-safe. A killed process loses what arrived since the record was last saved, up to 200 ms. After a power failure
// the record may list bytes that the disk does not have; finish() detects that.
class PartFile {
 public:
  // Opens FILE.part with the parts in its record, or starts an empty one.
  static absl::StatusOr<std::unique_ptr<PartFile>> open(const Folder& folder, const RemoteFile& remote);

  // Checks an answer. Errors: Aborted when the server's file is not the listed one, or not the one that the existing
  // parts belong to.
  absl::Status accept(const FileFacts& facts);
  // Writes bytes at their offset, and saves the record if that is due.
  absl::Status write(int64_t offset, std::string_view bytes);
  // Saves the record when the last save was 200 ms ago or longer.
  absl::Status save_if_due();
  absl::Status save();  // Writes the record.

  // Call when all bytes have arrived: checks them and gives the file its name. `idle` is called during the check, and
  // its error ends it. DataLoss when the content is not the hub's.
  absl::Status finish(const std::function<absl::Status()>& idle);
  // Discards all bytes. Returns how many there were.
  absl::StatusOr<int64_t> reset();

 private:
  PartFile(const Folder& folder, const RemoteFile& remote, host::Descriptor file);
  absl::Status save_locked() TITAN_REQUIRES(mutex_);

  const Folder& folder_;
  const RemoteFile remote_;
  const host::Descriptor file_;
  sync::Mutex mutex_;
  http::Ranges there_ TITAN_GUARDED_BY(mutex_);
  std::string etag_ TITAN_GUARDED_BY(mutex_);
  absl::Time saved_ TITAN_GUARDED_BY(mutex_);
};

// Removes parts that remain after the file has its name, because a process was killed at that moment.
absl::Status remove_parts(const Folder& folder, const RemoteFile& remote);

// Returns whether the folder reserves this name for its records, or the name is too long for them. Such a file of a hub
// cannot be downloaded.
bool is_reserved_name(const std::string& name);

}  // namespace titan::hub
