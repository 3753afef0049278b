#pragma once

#include <cstdint>
#include <stop_token>

#include "absl/status/status.h"
#include "common/io/hub/client.h"
#include "common/io/hub/folder.h"
#include "common/io/hub/inventory.h"
#include "common/io/hub/plan.h"

namespace titan::hub {

// Is told how it goes, by one thread at a time.
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

// Fetches what the plan lacks, with the record of it after every file. An error ends it and leaves what came to be gone
// on with.
absl::Status download(const Transfer& transfer, const Folder& folder, const Plan& plan, Inventory& inventory,
                      Watcher& watcher, const std::stop_token& stop);

}  // namespace titan::hub
