// Jobs that are over and leave the store for good: on request, or by age.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"

namespace titan::core {
namespace {

constexpr absl::Duration kLookForOld = absl::Minutes(1);
constexpr size_t kOldAtOnce = 50;
constexpr absl::Duration kRemembered = absl::Hours(24);  // A job that was deleted.
constexpr size_t kForgottenAtOnce = 200;

}  // namespace

void Core::take(const DeleteJob& input) {
  if (const auto live = jobs_.find(input.uid); live != jobs_.end()) {
    const job::JobRecord& record = live->second.record;
    const bool is_stopping = record.state == job::JobState::kStopping;
    const std::string& waits = live->second.pending_message;
    const std::string remedy =
        is_stopping ? absl::StrCat("; it is stopping and can be deleted once it has", waits.empty() ? "" : ": ", waits)
                    : "; cancel it first";
    return refuse(input.request, rpc::error(absl::StatusCode::kFailedPrecondition, "JOB_NOT_OVER",
                                            absl::StrCat("job ", record.name, " is ", job::name(record.state),
                                                         ": only a job that is over can be deleted", remedy),
                                            {{"state", std::string(job::name(record.state))}}));
  }
  const auto over = over_.find(input.uid);
  if (over == over_.end()) return refuse(input.request, no_such_job(input.uid));
  remove(input.request, over->second, input.actor);
}

// Its id stays, so that a node that was away is told to end what it may still run of it.
void Core::remove(RequestId request, const JobViewPtr& view, const std::string& actor) {
  const std::string& uid = view->record->uid;
  job::Tombstone tombstone{view->record->name, actor, now_ns(), view->record->request_id, view->record->fingerprint};
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  change.mutations = {store::put(deleted_key(uid), job::encode(tombstone)),
                      store::erase(job_key(uid)),
                      store::erase(spec_key(uid)),
                      store::erase(progress_key(uid)),
                      store::erase(cancel_key(uid)),
                      store::erase(update_key(uid))};
  change.erased_prefixes = {attempts_prefix(uid),        cursors_prefix(uid),      job_exits_prefix(uid),
                            job_errors_prefix(uid),      job_refusals_prefix(uid), job_events_prefix(uid),
                            job_failed_logs_prefix(uid), diagnoses_prefix(uid)};
  change.then.deleted.push_back(uid);
  deleting_.insert(uid);
  expect(change, Deleted{request, view, std::move(tombstone)});
  commit(std::move(change));
}

void Core::go_on(const Deleted& deleted, const absl::Status& status) {
  const job::JobRecord& record = *deleted.view->record;
  deleting_.erase(record.uid);
  if (!status.ok()) {
    count_kept_logs(*deleted.view);
    return refuse(deleted.request, status);
  }
  Reply& reply = effects_.now.replies.emplace_back();
  reply.request = deleted.request;
  reply.deleted = deleted.view;
  if (deleted_.contains(record.uid)) return;  // Two asked at the same time.
  bury(record.uid, deleted.tombstone);
  over_.erase(record.uid);
  kept_logs_.erase_job(record.uid);
  names_.erase(record.name);
  journal::Line line{journal::Level::kInfo, "JobDeleted", {}};
  line.add("job", record.name).add("uid", record.uid).add("actor", deleted.tombstone.actor);
  effects_.now.lines.push_back(std::move(line));
}

// Its request is known as long as it is: whoever repeats it has not heard of the deletion, and gets no second job.
void Core::bury(const std::string& uid, job::Tombstone tombstone) {
  if (deleted_.contains(uid)) return;
  if (!tombstone.request_id.empty()) requests_.emplace(tombstone.request_id, uid);
  deleted_by_age_.emplace(tombstone.time_ns, uid);
  deleted_.emplace(uid, std::move(tombstone));
}

// What a node that is away may still run of them is told to end when it comes back; only then nobody asks any more.
void Core::forget_deleted_jobs() {
  const int64_t oldest = now_ns() - absl::ToInt64Nanoseconds(kRemembered);
  if (deleted_by_age_.empty() || deleted_by_age_.begin()->first > oldest) return;
  const bool any_away = std::any_of(nodes_.all().begin(), nodes_.all().end(),
                                    [](const auto& node) { return node.second.state != NodeState::kReady; });
  if (any_away) return;
  Change change;
  while (!deleted_by_age_.empty() && change.mutations.size() < kForgottenAtOnce) {
    const auto [time_ns, uid] = *deleted_by_age_.begin();
    if (time_ns > oldest) break;
    const auto tombstone = deleted_.find(uid);
    const auto request = requests_.find(tombstone->second.request_id);
    if (request != requests_.end() && request->second == uid) requests_.erase(request);
    change.mutations.push_back(store::erase(deleted_key(uid)));
    deleted_.erase(tombstone);
    deleted_by_age_.erase(deleted_by_age_.begin());
  }
  commit(std::move(change));
}

// Of the request that made this job. Ok: the job, if there is one, is the answer.
absl::Status Core::check_repeated(const CreateJob& input, const std::string& uid) const {
  const auto creation = creating_.find(uid);
  const auto live = jobs_.find(uid);
  const auto over = over_.find(uid);
  const auto tombstone = deleted_.find(uid);
  const uint32_t fingerprint = creation != creating_.end() ? creation->second.job.record.fingerprint
                               : live != jobs_.end()       ? live->second.record.fingerprint
                               : over != over_.end()       ? over->second->record->fingerprint
                                                           : tombstone->second.fingerprint;
  if (fingerprint != input.fingerprint) {
    return rpc::bad_request("REQUEST_ID_REUSED", {{"request_id", "was used for another job; make a new UUID"}});
  }
  if (tombstone == deleted_.end()) return absl::OkStatus();
  const job::Tombstone& job = tombstone->second;
  return rpc::error(absl::StatusCode::kAlreadyExists, "JOB_DELETED",
                    absl::StrCat("this request has made job ", job.name, ", which was deleted",
                                 job.actor.empty() ? "" : absl::StrCat(" by ", job.actor), " at ",
                                 absl::FormatTime(absl::FromUnixNanos(job.time_ns), absl::UTCTimeZone()),
                                 "; for another one make a new request_id"),
                    {{"job", job.name}, {"uid", uid}});
}

// One that fails is old again the next time.
void Core::delete_old_jobs() {
  if (options_.keep_finished == absl::InfiniteDuration() || now_.monotonic < next_deletion_) return;
  next_deletion_ = now_.monotonic + kLookForOld;
  const int64_t oldest = now_ns() - absl::ToInt64Nanoseconds(options_.keep_finished);
  std::vector<JobViewPtr> old;
  for (const auto& [uid, view] : over_) {
    if (view->record->end_time_ns < oldest) old.push_back(view);
    if (old.size() == kOldAtOnce) break;
  }
  for (const JobViewPtr& view : old) remove(/*request=*/0, view, /*actor=*/"");
}

}  // namespace titan::core
