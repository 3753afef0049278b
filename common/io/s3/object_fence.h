#pragma once

// Decides who may change a checkpoint folder in an object store: common/io/storage/fence.h without locks.

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/s3/client.h"
#include "common/io/s3/tombstone.h"
#include "common/io/storage/fence.h"

namespace titan::s3 {

inline constexpr absl::Duration kObjectHeartbeatInterval = absl::Seconds(5);
inline constexpr absl::Duration kObjectHeartbeatTimeout = absl::Seconds(30);

// {folder}/fence.json names the one job, and its highest attempt, that may change what readers see: the set of
// manifests. It is changed by a put on the condition that it has not changed since it was read, so that only one of two
// contenders succeeds.
//
// Before a holder changes a manifest, it records the change in the fence (`pending`). The change is a put on the
// condition that the manifest still has the etag in the fence. The next holder finds the puts that may still be under
// way and replaces the objects that they expect (tombstone.h), so a put has happened before, or fails. Thus an attempt
// that was paused anywhere changes nothing once another one has the fence.
class ObjectFence {
 public:
  using Claim = storage::Fence::Claim;
  using Holder = storage::Fence::Holder;
  using Taken = storage::Fence::Taken;
  using Watch = storage::Fence::Watch;

  // `folder`: the key of the checkpoint folder.
  ObjectFence(std::shared_ptr<S3Client> client, std::string folder)
      : client_(std::move(client)), folder_(std::move(folder)) {}
  ~ObjectFence() { stop_heartbeat(); }

  // Like storage::Fence::raise() and take(). They also fail with FailedPrecondition for a store that does not honor
  // conditions, and abort the unfinished uploads of killed attempts.
  absl::Status raise(const Claim& claim, Taken& taken);
  absl::Status take(Claim claim, const Watch& watch, Taken& taken);

  // The calls below are for the holder. Others get an error for which is_fenced() is true.
  absl::Status check();
  absl::Status beat();
  // Beats in a separate thread, until release(), destruction or a takeover.
  void start_heartbeat(absl::Duration every = kObjectHeartbeatInterval);
  absl::Status release();

  struct Commit {
    std::string key, text;   // The manifest's key and content.
    std::string remembered;  // Folder for which the fence remembers the step; empty: none.
    int64_t step = -1;
  };
  // Publishes a manifest. `unknown`: it failed, but the manifest may exist or still appear.
  absl::Status publish(const Commit& commit, bool& unknown);
  // Removes manifests, in the given order, by replacing them with tombstones. The caller deletes the other files of the
  // steps.
  absl::Status retire(const std::vector<std::string>& keys);

  absl::StatusOr<Holder> holder();

 private:
  // A put that may be under way.
  struct Pending {
    std::string key, etag;   // `etag`: of the previous object; empty: none.
    bool publishes = false;  // Otherwise it removes the manifest.
    std::string remembered;
    int64_t step = -1;
  };
  struct Record {
    Holder holder;
    std::vector<Pending> pending;
    WriteCondition unchanged;
  };

  std::string key(const char* name) const;
  std::string the_folder() const;
  absl::StatusOr<Record> read();
  absl::Status write(const Record& record);
  bool is_mine(const Record& record) const;
  absl::Status fenced(const Record& record) const;
  absl::Status change(absl::FunctionRef<absl::Status(Record&)> how);
  absl::Status admit(const Claim& claim, const Holder& holder);
  absl::StatusOr<bool> silent(const Holder& holder);
  absl::Status settle();
  absl::Status seal(const Pending& pending);
  absl::StatusOr<std::string> etag_of(const std::string& key);
  absl::Status probe();
  absl::Status put_heartbeat();
  absl::Status abort_uploads();
  absl::Status publish_once(const Commit& commit, bool& unknown);
  void stop_heartbeat();

  const std::shared_ptr<S3Client> client_;
  const std::string folder_;
  std::string job_uid_;  // The holder's, after raise().
  int attempt_ = 0;
  std::optional<std::string>
      watched_;  // Etag of a beat that did not change while it was watched for kObjectHeartbeatTimeout.
  std::jthread beating_;
};

// Returns the name by which a job holds a fence in a store. The id of its dump folder distinguishes this training from
// another one with that name.
absl::StatusOr<std::string> holder_name(const std::string& job_uid, const std::string& dump_folder);

// Returns who holds the checkpoint folder `path` ("s3://...") if it is not `holder`; nothing when that is unknown. For
// a job that has ended: it disables the retries of that bucket's client for good.
std::optional<storage::Fence::Holder> other_holder(const std::string& path, const std::string& holder);

}  // namespace titan::s3
