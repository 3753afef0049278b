#pragma once

// Who may change a checkpoint folder in an object store: common/io/storage/fence.h without locks.

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
#include "common/io/s3/gone.h"
#include "common/io/storage/fence.h"

namespace titan::s3 {

inline constexpr absl::Duration kObjectBeat = absl::Seconds(5);
inline constexpr absl::Duration kObjectSilence = absl::Seconds(30);

// {folder}/fence.json names the one job, and of it the highest attempt, that may change what readers see: which
// manifests there are. It changes by a put on the condition that it is still what was read, so that of two who want it
// one gets it.
//
// A holder writes down in the fence what it is about to do (`pending`) before it does it, by a put on the condition
// that the manifest is still what the fence says. Whoever takes the fence over finds what may still be under way, and
// puts something else in its place (gone.h): either the step was there before, or the late put fails. So an attempt
// that was paused anywhere changes nothing once another one has the fence.
class ObjectFence {
 public:
  using Claim = storage::Fence::Claim;
  using Holder = storage::Fence::Holder;
  using Taken = storage::Fence::Taken;
  using Watch = storage::Fence::Watch;

  // `folder`: the key below which all lies.
  ObjectFence(std::shared_ptr<Client> client, std::string folder)
      : client_(std::move(client)), folder_(std::move(folder)) {}
  ~ObjectFence() { fall_silent(); }

  // As storage::Fence::raise() and take(). Also FailedPrecondition for a store that does not keep conditions, and gives
  // up what killed attempts left half uploaded.
  absl::Status raise(const Claim& claim, Taken& taken);
  absl::Status take(Claim claim, const Watch& watch, Taken& taken);

  // What follows is the holder's; is_fenced() for whoever is it no more.
  absl::Status check();
  absl::Status beat();
  void keep_beating(absl::Duration every = kObjectBeat);  // On a thread of its own, until the end or release().
  absl::Status release();

  struct Commit {
    std::string key, text;   // Of the manifest.
    std::string remembered;  // Folder under which the fence remembers the step; empty: not.
    int64_t step = -1;
  };
  // `unknown`: it failed, and yet the manifest may be there, or come to be.
  absl::Status publish(const Commit& commit, bool& unknown);
  // Takes manifests away, in the order given. What else lies beside one is for who calls to delete.
  absl::Status retire(const std::vector<std::string>& keys);

  absl::StatusOr<Holder> holder();

 private:
  // A put that is under way.
  struct Pending {
    std::string key, etag;   // `etag`: what is there before; empty: nothing.
    bool publishes = false;  // Else it takes the manifest away.
    std::string remembered;
    int64_t step = -1;
  };
  struct Record {
    Holder holder;
    std::vector<Pending> pending;
    Condition unchanged;
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
  absl::Status show_life();
  absl::Status give_up_uploads();
  absl::Status publish_once(const Commit& commit, bool& unknown);
  void fall_silent();

  const std::shared_ptr<Client> client_;
  const std::string folder_;
  std::string job_uid_;  // Who holds it by raise().
  int attempt_ = 0;
  std::optional<std::string> watched_;  // The beat that was watched for long enough and did not move.
  std::jthread beating_;
};

// Whom a job's fence in a store names: the id of its dump folder tells this training from another one of that name.
absl::StatusOr<std::string> holder_name(const std::string& job_uid, const std::string& dump_folder);

// Who has the checkpoint folder `path` ("s3://...") if it is not `holder`; for a job that has ended, and does not wait
// for a store that does not answer. Nothing when that is not known.
std::optional<storage::Fence::Holder> other_holder(const std::string& path, const std::string& holder);

}  // namespace titan::s3
