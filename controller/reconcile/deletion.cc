// Jobs that are over and leave the store for good: on request, or by age.

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/status/status.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

constexpr absl::Duration kLookForOld = absl::Minutes(1);
constexpr int kOldAtOnce = 50;

// What the store holds of a job. Its id stays, so that a node that was away is told to end what it may still run of it.
absl::StatusOr<std::vector<store::Mutation>> deletion_of(const store::Store& store, const job::JobRecord& record) {
  std::vector<store::Mutation> mutations = {store::put(deleted_key(record.uid), record.name),
                                            store::erase(job_key(record.uid)), store::erase(spec_key(record.uid)),
                                            store::erase(progress_key(record.uid))};
  for (const std::string& prefix :
       {attempts_prefix(record.uid), cursors_prefix(record.uid), job_events_prefix(record.uid)}) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> found, store::scan_all(store, prefix));
    for (const store::Record& one : found) mutations.push_back(store::erase(one.key));
  }
  return mutations;
}

}  // namespace

void Reconciler::remove(const std::string& uid, Done<JobViewPtr> done) {
  const JobViewPtr view = published_.find(uid);
  if (view == nullptr) return done(no_such_job(uid));
  const job::JobRecord& record = *view->record;
  if (!job::is_final(record.state)) {
    return done(rpc::error(absl::StatusCode::kFailedPrecondition, "JOB_NOT_OVER",
                           absl::StrCat("job ", record.name, " is ", job::name(record.state),
                                        ": only a job that is over can be deleted; cancel it first"),
                           {{"state", std::string(job::name(record.state))}}));
  }
  // Nothing writes the records of a job that is over, so they can be read without the lock.
  absl::StatusOr<std::vector<store::Mutation>> mutations = deletion_of(store_, record);
  if (!mutations.ok()) return done(mutations.status());
  store_.commit({*std::move(mutations), store::WhenFull::kRefuse},
                [this, view, done = std::move(done)](const absl::StatusOr<int64_t>& revision) {
                  if (!revision.ok()) return done(revision.status());
                  {
                    sync::Lock lock(mutex_);
                    forget_job(*view->record, *revision);
                  }
                  done(view);
                });
}

void Reconciler::forget_job(const job::JobRecord& record, int64_t revision) {
  if (!deleted_.insert(record.uid).second) return;  // Two asked at the same time.
  names_.erase(record.name);
  requests_.erase(record.request_id);
  published_.erase(record.uid, revision);
  journal::Line line{journal::Level::kInfo, "JobDeleted", {}};
  line.add("job", record.name).add("uid", record.uid);
  write({line});
}

void Reconciler::delete_old_jobs() {
  const int64_t oldest = now_ns() - absl::ToInt64Nanoseconds(options_.keep_finished);
  const auto is_old = [oldest](const JobView& view) {
    return job::is_final(view.record->state) && view.record->end_time_ns < oldest;
  };
  for (const JobViewPtr& view : published_.list(0, kOldAtOnce, is_old)) {
    remove(view->record->uid, [](const absl::StatusOr<JobViewPtr>&) {});  // One that fails is old again next time.
  }
}

bool Reconciler::time_to_delete_old() {
  if (options_.keep_finished == absl::InfiniteDuration() || clock_.monotonic() < next_deletion_) return false;
  next_deletion_ = clock_.monotonic() + kLookForOld;
  return true;
}

}  // namespace titan::reconcile
