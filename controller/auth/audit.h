#pragma once

// Logs who changed something or tried to: a JSON line for each call, in a file that only the controller's user can
// read.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/service/journal/journal.h"

namespace titan::auth {

struct AuditEntry {
  absl::Time time;
  std::string actor, peer;
  std::string method;    // "JobService.CancelJob"
  std::string resource;  // Name of the job, node or token; empty: none.
  std::string request_id;
  std::string result;  // "OK", or the error's reason (its status code if it has none).
};

// Returns the entry as a line of JSON without a line end. Cuts `resource` and `request_id` after 256 bytes.
std::string to_line(const AuditEntry& entry);

// An audit log that rotates its files. Thread-safe.
class Audit {
 public:
  struct Limits {
    int64_t bytes = 64 << 20;  // A line that would exceed this starts a new file, and PATH becomes PATH.1.
    int files = 8;             // Files that are kept, PATH included.
  };

  // `journal` gets an error when lines cannot be written; it may be null. Errors: those of opening the file.
  static absl::StatusOr<std::unique_ptr<Audit>> open(const std::string& path, Limits limits,
                                                     std::shared_ptr<journal::Journal> journal = nullptr);
  ~Audit();
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  // Writes a line without syncing it: it survives this process. A failure goes to the journal, once until a write
  // succeeds again, and not to the caller: a full disk must not keep anybody from cancelling a job.
  void write(const AuditEntry& entry);

 private:
  Audit(std::string path, Limits limits, std::shared_ptr<journal::Journal> journal)
      : path_(std::move(path)), limits_(limits), journal_(std::move(journal)) {}
  absl::Status reopen() TITAN_REQUIRES(mutex_);
  absl::Status rotate() TITAN_REQUIRES(mutex_);

  const std::string path_;
  const Limits limits_;
  const std::shared_ptr<journal::Journal> journal_;
  sync::Mutex mutex_;
  int fd_ TITAN_GUARDED_BY(mutex_) = -1;
  int64_t size_ TITAN_GUARDED_BY(mutex_) = 0;
  bool complained_ TITAN_GUARDED_BY(mutex_) = false;
};

}  // namespace titan::auth
