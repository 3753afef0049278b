#pragma once

// Plans and runs the download of a repository's files: what is there already, what is missing, and the transfers.

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
  bool done = false;   // It is there, and it is the hub's.
  http::Ranges there;  // Else: what is there of it.

  int64_t left() const { return done ? 0 : remote.size - there.total(); }
};

struct Plan {
  std::string commit;
  std::vector<PlannedFile> files;  // Small ones first: what says what the rest is comes soon.

  int64_t size() const;
  int64_t left() const;
};

// Compares the folder with the files. One that is there and in no inventory is read through, which `checking` is told
// before. Errors: InvalidArgument for a name that cannot be there, Cancelled.
absl::StatusOr<Plan> make_plan(const Folder& folder, std::vector<RemoteFile> files, const std::string& commit,
                               Inventory& inventory, const std::function<void(const RemoteFile&)>& checking,
                               const std::stop_token& stop);

// ResourceExhausted unless the folder's disk has room for what is left.
absl::Status check_space(const Folder& folder, const Plan& plan);

// Observes a download; called by one thread at a time.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void waiting(const std::string& /*folder*/) {}  // Somebody else downloads into it.
  virtual void checking(const RemoteFile& /*file*/) {}    // It is read through.
  virtual void planned(const Plan& /*plan*/) {}           // Before the first byte.
  virtual void arrived(int64_t /*bytes*/) {}
  virtual void finished(const RemoteFile& /*file*/) {}  // It has its name.
  // From its beginning, once: what came of it is of no use.
  virtual void again(const RemoteFile& /*file*/, int64_t /*lost*/, const absl::Status& /*why*/) {}
};

struct Transfer {
  http::Settings settings;
  http::RetryPolicy retry;
  Repo repo;
  int parallel = 8;
  int64_t piece = int64_t{64} << 20;  // So much of a file at a time, on one connection.
};

// Fetches what the plan lacks, with the record of it after every file. An error ends it and leaves what came, from
// which another download resumes.
absl::Status download(const Transfer& transfer, const Folder& folder, const Plan& plan, Inventory& inventory,
                      Watcher& watcher, const std::stop_token& stop);

}  // namespace titan::hub
