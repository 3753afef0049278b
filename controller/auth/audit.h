#pragma once

// Who changed what, or tried to: a line of JSON for each call, in a file that only the controller's user can read.

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
  std::string resource;  // As the caller named it; empty: none.
  std::string request_id;
  std::string result;  // "OK", or the reason of the refusal.
};

// One line, without its end. What callers chose is cut where it is long.
std::string to_line(const AuditEntry& entry);

class Audit {
 public:
  struct Limits {
    int64_t bytes = 64 << 20;  // Of one file; then it becomes PATH.1, and so on.
    int files = 8;
  };

  // `journal` hears when lines cannot be written; none: nobody does. Errors: those of the disk.
  static absl::StatusOr<std::unique_ptr<Audit>> open(const std::string& path, Limits limits,
                                                     std::shared_ptr<journal::Journal> journal = nullptr);
  ~Audit();
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  // Written when it returns, though not yet synced: it outlives this process. What cannot be written is said once, and
  // let go: a full disk must not keep anybody from cancelling a job.
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
