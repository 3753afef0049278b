#pragma once

// A file on its way: FILE.part holds bytes where they belong, FILE.part.json says which of them are there.

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

// What is there already of this content; nothing when it is of another one or makes no sense.
http::Ranges recorded_parts(const Folder& folder, const RemoteFile& remote);

// Thread-safe. A process that is killed loses what came since the record was written last, a fifth of a second. After a
// power cut the record may promise what the disk does not have: finish() sees that.
class PartFile {
 public:
  static absl::StatusOr<std::unique_ptr<PartFile>> open(const Folder& folder, const RemoteFile& remote);

  // Errors: Aborted when the server's file is another one than that of which parts are here.
  absl::Status accept(const FileFacts& facts);
  absl::Status write(int64_t offset, std::string_view bytes);
  absl::Status save_if_due();
  absl::Status save();  // Writes the record.

  // Once all is there: checks it, and gives it its name. DataLoss when it is not what the hub has.
  absl::Status finish(const std::function<absl::Status()>& idle);
  // Begins anew, with nothing. Gives how much was there.
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

// Takes away what is left of parts once the file has its name: of who was killed just then.
absl::Status remove_parts(const Folder& folder, const RemoteFile& remote);

// Whether the name is one that this folder keeps its own things under, so that no file of a hub can have it.
bool is_taken_name(const std::string& name);

}  // namespace titan::hub
