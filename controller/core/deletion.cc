// Jobs that are over and leave the store for good: on request, or by age.

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"

namespace titan::core {
namespace {

constexpr absl::Duration kLookForOld = absl::Minutes(1);
constexpr size_t kOldAtOnce = 50;

}  // namespace

void Core::take(const DeleteJob& input) {
  if (const auto live = jobs_.find(input.uid); live != jobs_.end()) {
    const job::JobRecord& record = live->second.record;
    return refuse(input.request, rpc::error(absl::StatusCode::kFailedPrecondition, "JOB_NOT_OVER",
                                            absl::StrCat("job ", record.name, " is ", job::name(record.state),
                                                         ": only a job that is over can be deleted; cancel it first"),
                                            {{"state", std::string(job::name(record.state))}}));
  }
  const auto over = over_.find(input.uid);
  if (over == over_.end()) return refuse(input.request, no_such_job(input.uid));
  remove(input.request, over->second, input.actor);
}

// Its id stays, so that a node that was away is told to end what it may still run of it.
void Core::remove(RequestId request, const JobViewPtr& view, const std::string& actor) {
  const std::string& uid = view->record->uid;
  Change change;
  change.when_full = store::WhenFull::kRefuse;
  change.mutations = {store::put(deleted_key(uid), view->record->name),
                      store::erase(job_key(uid)),
                      store::erase(spec_key(uid)),
                      store::erase(progress_key(uid)),
                      store::erase(cancel_key(uid)),
                      store::erase(update_key(uid))};
  change.erased_prefixes = {attempts_prefix(uid),   cursors_prefix(uid),      job_exits_prefix(uid),
                            job_errors_prefix(uid), job_refusals_prefix(uid), job_events_prefix(uid)};
  change.then.deleted.push_back(uid);
  deleting_.insert(uid);
  expect(change, Deleted{request, view, actor});
  commit(std::move(change));
}

void Core::go_on(const Deleted& deleted, const absl::Status& status) {
  const job::JobRecord& record = *deleted.view->record;
  deleting_.erase(record.uid);
  if (!status.ok()) return refuse(deleted.request, status);
  Reply& reply = effects_.now.replies.emplace_back();
  reply.request = deleted.request;
  reply.deleted = deleted.view;
  if (!deleted_.insert(record.uid).second) return;  // Two asked at the same time.
  over_.erase(record.uid);
  names_.erase(record.name);
  requests_.erase(record.request_id);
  journal::Line line{journal::Level::kInfo, "JobDeleted", {}};
  line.add("job", record.name).add("uid", record.uid).add("actor", deleted.actor);
  effects_.now.lines.push_back(std::move(line));
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
