#pragma once

// Plans and runs the download of a repository's files: what exists already, what is missing, and the transfers.

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/http/ranges.h"
#include "common/io/hub/api.h"
#include "common/io/hub/client.h"
#include "common/io/hub/folder.h"
#include "common/io/hub/verification.h"

namespace titan::hub {

struct PlannedFile {
  RemoteFile remote;
  bool done = false;   // The file exists and is the hub's.
  http::Ranges there;  // Otherwise: the parts of it that exist.

  int64_t left() const { return done ? 0 : remote.size - there.total(); }
};

struct DownloadPlan {
  std::string commit;
  std::vector<PlannedFile> files;  // Small ones first, because they describe the others.

  int64_t size() const;
  int64_t left() const;
};

// Compares the folder with the files. A file of the right size that is not in the inventory is read completely, after a
// call of `checking`. Errors: InvalidArgument for a reserved name, Cancelled, those of the disk.
absl::StatusOr<DownloadPlan> make_plan(const Folder& folder, std::vector<RemoteFile> files, const std::string& commit,
                                       Inventory& inventory, const std::function<void(const RemoteFile&)>& checking,
                                       const std::stop_token& stop);

// Returns ResourceExhausted unless the folder's disk has space for what is left.
absl::Status check_space(const Folder& folder, const DownloadPlan& plan);

// Observes a download; called by one thread at a time.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void waiting(const std::string& /*folder*/) {}  // Another process downloads into the folder.
  virtual void checking(const RemoteFile& /*file*/) {}    // The file will be read and checked.
  virtual void planned(const DownloadPlan& /*plan*/) {}   // Before the first byte.
  virtual void arrived(int64_t /*bytes*/) {}
  virtual void finished(const RemoteFile& /*file*/) {}  // The file has its final name.
  // The download of the file restarts once: the `lost` bytes that arrived are useless.
  virtual void again(const RemoteFile& /*file*/, int64_t /*lost*/, const absl::Status& /*why*/) {}
};

struct DownloadOptions {
  http::HttpSettings settings;
  http::RetryPolicy retry;
  Repo repo;
  int parallel = 8;
  int64_t piece = int64_t{64} << 20;  // Bytes per request, on one connection.
};

// Downloads what the plan lacks, and saves the inventory after every file. An error ends it and leaves the parts that
// arrived, from which another download resumes. Errors: ResourceExhausted (check_space), DataLoss for wrong content
// after one more try, Cancelled, those of HubClient and the disk.
absl::Status download(const DownloadOptions& transfer, const Folder& folder, const DownloadPlan& plan,
                      Inventory& inventory, Watcher& watcher, const std::stop_token& stop);

}  // namespace titan::hub
