#include "controller/core/deletions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {

void Deletions::remember(const std::string& uid, job::Tombstone tombstone) {
  const auto [at, is_new] = tombstones_.try_emplace(uid, std::move(tombstone));
  if (is_new) by_age_.emplace(at->second.time_ns, uid);
}

job::Tombstone Deletions::forget(const std::string& uid) {
  const auto found = tombstones_.find(uid);
  job::Tombstone tombstone = std::move(found->second);
  by_age_.erase({tombstone.time_ns, uid});
  tombstones_.erase(found);
  return tombstone;
}

const job::Tombstone* Deletions::find(const std::string& uid) const {
  const auto found = tombstones_.find(uid);
  return found == tombstones_.end() ? nullptr : &found->second;
}

std::optional<std::string> Deletions::oldest_until(int64_t time_ns) const {
  if (by_age_.empty() || by_age_.begin()->first > time_ns) return std::nullopt;
  return by_age_.begin()->second;
}

// Jobs that have ended leave the store for good, on request or by age.

namespace {

constexpr size_t kOldAtOnce = 50;
constexpr absl::Duration kRemembered = absl::Hours(24);  // For a deleted job.
constexpr size_t kForgottenAtOnce = 200;

// A tombstone stays, so that a node that was away is ordered to stop what it may still run of the job.
void remove(Step& step, RequestId request, const JobViewPtr& view, const std::string& actor) {
  const std::string& uid = view->record->uid;
  job::Tombstone tombstone{view->record->name, actor, step.now.wall_ns(), view->record->request_id,
                           view->record->fingerprint};
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
  step.state.deletions.begin(uid);
  step.expect(change, Deleted{request, view, std::move(tombstone)});
  step.commit(std::move(change));
}

}  // namespace

void take(Step& step, const DeleteJob& input) {
  if (const LiveJob* live = step.state.jobs.find(input.uid)) {
    const job::JobRecord& record = live->record;
    const bool is_stopping = record.state == job::JobState::kStopping;
    const std::string& waits = live->pending_message;
    const std::string remedy = is_stopping ? absl::StrCat("; it is stopping and can be deleted once it has ended",
                                                          waits.empty() ? "" : ": ", waits)
                                           : "; cancel it first";
    return step.refuse(input.request, rpc::error(absl::StatusCode::kFailedPrecondition, "JOB_NOT_OVER",
                                                 absl::StrCat("job ", record.name, " is ", job::name(record.state),
                                                              ": only a job that is over can be deleted", remedy),
                                                 {{"state", std::string(job::name(record.state))}}));
  }
  const JobViewPtr over = step.state.jobs.find_over(input.uid);
  if (over == nullptr) return step.refuse(input.request, no_such_job(input.uid));
  remove(step, input.request, over, input.actor);
}

void on_outcome(Step& step, const Deleted& deleted, const absl::Status& status) {
  const job::JobRecord& record = *deleted.view->record;
  step.state.deletions.end(record.uid);
  if (!status.ok()) {
    count_kept_logs(step.state.kept_logs, *deleted.view);
    return step.refuse(deleted.request, status);
  }
  Reply& reply = step.effects.now.replies.emplace_back();
  reply.request = deleted.request;
  reply.deleted = deleted.view;
  if (step.state.deletions.contains(record.uid)) return;  // Two clients deleted it at the same time.
  remember_deleted(step.state, step.now, record.uid, deleted.tombstone);
  step.state.jobs.remove(*deleted.view);
  step.state.kept_logs.erase_job(record.uid);
  journal::Line line{journal::Level::kInfo, "JobDeleted", {}};
  line.add("job", record.name).add("uid", record.uid).add("actor", deleted.tombstone.actor);
  step.effects.now.lines.push_back(std::move(line));
}

// The request_id is remembered as long as the tombstone: a client that repeats the request has not heard of the
// deletion and must not get a second job.
void remember_deleted(State& state, const Now& now, const std::string& uid, job::Tombstone tombstone) {
  if (state.deletions.contains(uid)) return;
  if (tombstone.time_ns == 0) tombstone.time_ns = now.wall_ns();  // The record was lost: it was deleted before now.
  state.requests.add_if_new(tombstone.request_id, uid);
  state.deletions.remember(uid, std::move(tombstone));
}

// A node that is away may still run these jobs, and must be ordered to stop them when it comes back.
void forget_deleted_jobs(Step& step) {
  const int64_t oldest = step.now.wall_ns() - absl::ToInt64Nanoseconds(kRemembered);
  if (!step.state.deletions.oldest_until(oldest)) return;
  const bool any_away = std::any_of(step.state.nodes.all().begin(), step.state.nodes.all().end(),
                                    [](const auto& node) { return node.second.state != NodeState::kReady; });
  if (any_away) return;
  Change change;
  while (change.mutations.size() < kForgottenAtOnce) {
    const std::optional<std::string> uid = step.state.deletions.oldest_until(oldest);
    if (!uid) break;
    const job::Tombstone tombstone = step.state.deletions.forget(*uid);
    step.state.requests.forget(tombstone.request_id, *uid);
    change.mutations.push_back(store::erase(deleted_key(*uid)));
  }
  step.commit(std::move(change));
}

absl::Status check_repeated(const State& state, const CreateJob& input, const std::string& uid) {
  const Creation* creation = state.jobs.find_creation(uid);
  const LiveJob* live = state.jobs.find(uid);
  const JobViewPtr over = state.jobs.find_over(uid);
  const job::Tombstone* tombstone = state.deletions.find(uid);
  const uint32_t fingerprint = creation != nullptr ? creation->job.record.fingerprint
                               : live != nullptr   ? live->record.fingerprint
                               : over != nullptr   ? over->record->fingerprint
                                                   : tombstone->fingerprint;
  if (fingerprint != input.fingerprint) {
    return rpc::bad_request("REQUEST_ID_REUSED", {{"request_id", "was used for another job; make a new UUID"}});
  }
  if (tombstone == nullptr) return absl::OkStatus();
  const job::Tombstone& job = *tombstone;
  return rpc::error(absl::StatusCode::kAlreadyExists, "JOB_DELETED",
                    absl::StrCat("this request_id created job ", job.name, ", which was deleted",
                                 job.actor.empty() ? "" : absl::StrCat(" by ", job.actor), " at ",
                                 absl::FormatTime(absl::FromUnixNanos(job.time_ns), absl::UTCTimeZone()),
                                 "; use a new request_id to create another job"),
                    {{"job", job.name}, {"uid", uid}});
}

// A deletion that fails is tried again the next time.
void delete_old_jobs(Step& step) {
  if (step.options.keep_finished == absl::InfiniteDuration()) return;
  if (!step.state.deletion_by_age.is_due(step.now.monotonic)) return;
  const int64_t oldest = step.now.wall_ns() - absl::ToInt64Nanoseconds(step.options.keep_finished);
  std::vector<JobViewPtr> old;
  for (const auto& [uid, view] : step.state.jobs.over()) {
    if (view->record->end_time_ns < oldest) old.push_back(view);
    if (old.size() == kOldAtOnce) break;
  }
  for (const JobViewPtr& view : old) remove(step, /*request=*/0, view, /*actor=*/"");
}

}  // namespace titan::core
