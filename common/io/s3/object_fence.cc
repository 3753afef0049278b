#include "common/io/s3/object_fence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_files.h"
#include "common/io/storage/fence_record.h"
#include "common/io/storage/folder_id.h"
#include "common/io/storage/process_identity.h"
#include "nlohmann/json.hpp"

namespace titan::s3 {
namespace {

constexpr char kFile[] = "fence.json";
constexpr char kAlive[] = ".fence-alive";
constexpr char kProbe[] = ".fence-probe";
constexpr absl::Duration kWatchInterval = absl::Seconds(1);
constexpr int kTries = 20;  // One fails only when another writer changed the object in between.

WriteCondition as_found(const std::string& etag) {
  return etag.empty() ? WriteCondition{.kind = WriteCondition::kAbsent} : WriteCondition{WriteCondition::kSame, etag};
}

}  // namespace

std::string ObjectFence::key(const char* name) const {
  return folder_.empty() ? name : absl::StrCat(folder_, "/", name);
}
std::string ObjectFence::the_folder() const { return absl::StrCat("the checkpoint folder ", client_->place(folder_)); }

absl::StatusOr<ObjectFence::Record> ObjectFence::read() {
  Facts facts;
  const absl::StatusOr<std::string> text = client_->text(key(kFile), facts);
  if (absl::IsNotFound(text.status())) return Record{{}, {}, {.kind = WriteCondition::kAbsent}};
  if (!text.ok()) return text.status();
  const std::string place = client_->place(key(kFile));
  TITAN_ASSIGN_OR_RETURN(Holder holder, storage::holder_from_text(place, *text));
  Record record{std::move(holder), {}, {WriteCondition::kSame, facts.etag}};
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  try {
    for (const nlohmann::json& one : json.value("pending", nlohmann::json::array())) {
      record.pending.push_back(
          {one.at("key"), one.at("etag"), one.at("publishes"), one.at("remembered"), one.at("step")});
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat(place, ": ", error.what(), "; if no job writes there, delete it"));
  }
  return record;
}

absl::Status ObjectFence::write(const Record& record) {
  nlohmann::json json = storage::to_json(record.holder);
  for (const Pending& one : record.pending) {
    json["pending"].push_back({{"key", one.key},
                               {"etag", one.etag},
                               {"publishes", one.publishes},
                               {"remembered", one.remembered},
                               {"step", one.step}});
  }
  return client_->put(key(kFile), json.dump() + "\n", record.unchanged).status();
}

absl::StatusOr<ObjectFence::Holder> ObjectFence::holder() {
  TITAN_ASSIGN_OR_RETURN(Record record, read());
  return std::move(record.holder);
}

bool ObjectFence::is_mine(const Record& record) const {
  return record.holder.job_uid == job_uid_ && record.holder.attempt == attempt_;
}

absl::Status ObjectFence::fenced(const Record& record) const {
  return storage::fenced_status(the_folder(), job_uid_, attempt_, record.holder);
}

absl::Status ObjectFence::check() {
  TITAN_ASSIGN_OR_RETURN(const Record record, read());
  return is_mine(record) ? absl::OkStatus() : fenced(record);
}

// Changes the record as the holder. Reads it again if another writer changed it in between. Aborted after kTries.
absl::Status ObjectFence::change(absl::FunctionRef<absl::Status(Record&)> how) {
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    TITAN_ASSIGN_OR_RETURN(Record record, read());
    if (!is_mine(record)) return fenced(record);
    TITAN_RETURN_IF_ERROR(how(record));
    status = write(record);
    if (!absl::IsAlreadyExists(status)) return status;
  }
  return absl::AbortedError(status.message());
}

// Returns whether the holder seems dead: its process has ended, it never beat, or its last beat is older than
// kObjectHeartbeatTimeout, by the store's clock or by watching.
absl::StatusOr<bool> ObjectFence::silent(const Holder& holder) {
  if (storage::process_has_ended(holder.process)) return true;
  const absl::StatusOr<Facts> beat = client_->head(key(kAlive));
  if (absl::IsNotFound(beat.status())) return true;
  if (!beat.ok()) return beat.status();
  const bool has_time = beat->modified != absl::InfinitePast();
  return watched_ == beat->etag || (has_time && beat->now - beat->modified >= kObjectHeartbeatTimeout);
}

absl::Status ObjectFence::admit(const Claim& claim, const Holder& holder) {
  if (holder.job_uid == claim.job_uid) {
    if (holder.attempt <= claim.attempt) return absl::OkStatus();
    const absl::Status fenced = storage::fenced_status(the_folder(), claim.job_uid, claim.attempt, holder);
    return absl::FailedPreconditionError(absl::StrCat(
        fenced.message(), "; if the dump folder was created again, delete ", client_->place(key(kFile)), " as well"));
  }
  // A job that lost the folder must not take it back: two jobs would train one model alternately.
  if (holder.former.contains(claim.job_uid))
    return storage::fenced_status(the_folder(), claim.job_uid, claim.attempt, holder);
  if (holder.job_uid.empty() || holder.released) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const bool free, silent(holder));
  return free ? absl::OkStatus() : storage::in_use_status(the_folder(), holder, "another checkpoint.folder");
}

// Checks that the store honors conditions: one that ignores them would let two attempts write.
absl::Status ObjectFence::probe() {
  if (client_->supports_conditions) return absl::OkStatus();
  const std::string place = absl::StrCat(key(kProbe), "-", absl::ToUnixNanos(absl::Now()), "-", attempt_);
  TITAN_ASSIGN_OR_RETURN(const std::string etag, client_->put(place, "1", {.kind = WriteCondition::kAbsent}));
  const absl::Status again = client_->put(place, "2", {.kind = WriteCondition::kAbsent}).status();
  const absl::Status other =
      client_->put(place, "3", {WriteCondition::kSame, "\"0123456789abcdef0123456789abcdef\""}).status();
  TITAN_RETURN_IF_ERROR(client_->remove(place));
  for (const absl::Status& one : {again, other}) {
    if (one.ok())
      return absl::FailedPreconditionError(
          absl::StrCat(the_folder(),
                       ": this store does not honor If-None-Match and If-Match, without which two attempts could write "
                       "at once; choose another store, or a folder of a file system"));
    if (!absl::IsAlreadyExists(one)) return one;
  }
  client_->supports_conditions = true;
  return absl::OkStatus();
}

absl::Status ObjectFence::abort_uploads() {
  TITAN_ASSIGN_OR_RETURN(const std::vector<Upload> left, client_->uploads(key("")));
  const size_t begin = key("").size();
  for (const Upload& one : left) {
    // Folders further below may belong to another job.
    const bool own = std::count(one.key.begin() + static_cast<std::ptrdiff_t>(begin), one.key.end(), '/') <= 1;
    if (own) TITAN_RETURN_IF_ERROR(client_->abort(one));
  }
  return absl::OkStatus();
}

absl::Status ObjectFence::raise(const Claim& claim, Taken& taken) {
  job_uid_ = claim.job_uid;
  attempt_ = claim.attempt;
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    TITAN_ASSIGN_OR_RETURN(Record record, read());
    TITAN_RETURN_IF_ERROR(admit(claim, record.holder));
    if (i == 0) TITAN_RETURN_IF_ERROR(probe());
    const bool same_job = record.holder.job_uid == claim.job_uid;
    taken = {.attempt = claim.attempt};
    if (!same_job && !record.holder.job_uid.empty() && !record.holder.released)
      taken.taken_from = storage::describe(record.holder);
    taken.committed = record.holder.committed;
    storage::hand_over(record.holder, claim, claim.attempt);
    // Precedes the record that names this job, because the next contender must find it alive.
    if (!claim.process.empty()) TITAN_RETURN_IF_ERROR(put_heartbeat());
    status = write(record);
    if (status.ok()) break;
    if (!absl::IsAlreadyExists(status)) return status;
  }
  if (!status.ok()) return absl::AbortedError(status.message());
  TITAN_RETURN_IF_ERROR(settle());
  TITAN_ASSIGN_OR_RETURN(const Holder now, holder());
  taken.committed = now.committed;
  return abort_uploads();
}

absl::Status ObjectFence::take(Claim claim, const Watch& watch, Taken& taken) {
  std::optional<std::string> seen;
  for (absl::Duration waited;; waited += kWatchInterval) {
    const absl::Status status = raise(claim, taken);
    if (!storage::is_in_use(status)) return status;
    const absl::StatusOr<Facts> beat = client_->head(key(kAlive));
    if (!beat.ok()) return beat.status();
    if (seen && *seen != beat->etag) return status;  // The holder is alive.
    if (!seen && watch.say) {
      watch.say(absl::StrCat(the_folder(), " was not released by its last job: it becomes free after ",
                             absl::FormatDuration(kObjectHeartbeatTimeout), " without a sign of life"));
    }
    seen = beat->etag;
    if (waited >= kObjectHeartbeatTimeout) watched_ = seen;
    watch.sleep ? watch.sleep(kWatchInterval) : absl::SleepFor(kWatchInterval);
  }
}

// The text never repeats, so that its etag distinguishes beats.
absl::Status ObjectFence::put_heartbeat() {
  return client_->put(key(kAlive), absl::StrCat(job_uid_, " ", absl::ToUnixNanos(absl::Now())), {}).status();
}

absl::Status ObjectFence::beat() {
  TITAN_RETURN_IF_ERROR(check());
  return put_heartbeat();
}

void ObjectFence::start_heartbeat(absl::Duration every) {
  // A single failed beat does no harm; the beats end only when the fence names another holder.
  beating_ = std::jthread([this, every](const std::stop_token& stop) {
    while (http::wait_for(every, stop) && !storage::is_fenced(beat())) {
    }
  });
}

void ObjectFence::stop_heartbeat() {
  if (!beating_.joinable()) return;
  beating_.request_stop();
  beating_.join();
}

absl::Status ObjectFence::release() {
  stop_heartbeat();
  TITAN_RETURN_IF_ERROR(settle());
  return change([](Record& record) {
    record.holder.released = true;
    return absl::OkStatus();
  });
}

// Returns "" for a missing object.
absl::StatusOr<std::string> ObjectFence::etag_of(const std::string& key) {
  absl::StatusOr<Facts> facts = client_->head(key);
  if (absl::IsNotFound(facts.status())) return std::string();
  if (!facts.ok()) return facts.status();
  return std::move(facts->etag);
}

// Ensures that the put has happened or cannot happen any more.
absl::Status ObjectFence::seal(const Pending& pending) {
  const std::string mark = make_tombstone();
  const absl::Status status = client_->put(pending.key, mark, as_found(pending.etag)).status();
  return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

// Settles the puts that an earlier attempt left unfinished, or this one when the store did not answer.
absl::Status ObjectFence::settle() {
  TITAN_ASSIGN_OR_RETURN(const Record record, read());
  if (!is_mine(record)) return fenced(record);
  if (record.pending.empty()) return absl::OkStatus();
  std::vector<Pending> happened;
  for (const Pending& one : record.pending) {
    TITAN_RETURN_IF_ERROR(seal(one));
    if (!one.publishes || one.remembered.empty()) continue;
    const absl::StatusOr<Facts> there = client_->head(one.key);
    if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
    if (!there.ok()) continue;
    TITAN_ASSIGN_OR_RETURN(const bool gone, is_tombstone(*client_, one.key, there->size));
    if (!gone) happened.push_back(one);
  }
  return change([&](Record& now) {
    now.pending.clear();
    for (const Pending& one : happened) now.holder.committed[one.remembered] = {one.step, job_uid_};
    return absl::OkStatus();
  });
}

absl::Status ObjectFence::publish_once(const Commit& commit, bool& unknown) {
  unknown = false;
  TITAN_RETURN_IF_ERROR(settle());
  TITAN_ASSIGN_OR_RETURN(const std::string before, etag_of(commit.key));
  TITAN_RETURN_IF_ERROR(change([&](Record& record) {
    record.pending = {{commit.key, before, true, commit.remembered, commit.step}};
    return absl::OkStatus();
  }));
  const absl::Status put = client_->put(commit.key, commit.text, as_found(before)).status();
  unknown = !put.ok() && !absl::IsAlreadyExists(put);
  return put;
}

absl::Status ObjectFence::publish(const Commit& commit, bool& unknown) {
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    status = publish_once(commit, unknown);
    if (!absl::IsAlreadyExists(status)) break;
    TITAN_RETURN_IF_ERROR(check());  // If another attempt sealed it, this one is fenced.
  }
  if (absl::IsAlreadyExists(status)) return absl::AbortedError(status.message());
  TITAN_RETURN_IF_ERROR(status);
  // The step is committed even if the fence cannot record it.
  change([&](Record& record) {
    record.pending.clear();
    if (!commit.remembered.empty()) record.holder.committed[commit.remembered] = {commit.step, job_uid_};
    return absl::OkStatus();
  }).IgnoreError();
  return absl::OkStatus();
}

absl::Status ObjectFence::retire(const std::vector<std::string>& keys) {
  TITAN_RETURN_IF_ERROR(settle());
  std::vector<Pending> doomed;
  for (const std::string& key : keys) {
    TITAN_ASSIGN_OR_RETURN(const std::string etag, etag_of(key));
    if (!etag.empty()) doomed.push_back({key, etag, false, "", -1});
  }
  if (doomed.empty()) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(change([&](Record& record) {
    record.pending = doomed;
    return absl::OkStatus();
  }));
  return settle();
}

absl::StatusOr<std::string> holder_name(const std::string& job_uid, const std::string& dump_folder) {
  const absl::StatusOr<std::string> id = storage::read_folder_id(storage::posix_files(), dump_folder);
  if (!id.ok() && !absl::IsNotFound(id.status())) return id.status();
  return id.ok() ? absl::StrCat(job_uid, "/", *id) : job_uid;
}

std::optional<storage::Fence::Holder> other_holder(const std::string& path, const std::string& holder) {
  const absl::StatusOr<Location> location = parse_location(path);
  const absl::StatusOr<std::shared_ptr<S3Client>> client = client_of(path);
  if (!location.ok() || !client.ok()) return std::nullopt;
  (*client)->disable_retries();
  absl::StatusOr<storage::Fence::Holder> there = ObjectFence(*client, location->key).holder();
  if (!there.ok() || there->job_uid.empty() || there->job_uid == holder) return std::nullopt;
  return *std::move(there);
}

}  // namespace titan::s3
