#include "tests/simulation/watch_checker.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/core/keys.h"
#include "controller/job/record.h"

namespace titan::simulation {
namespace {

constexpr int64_t kCompareEvery = 4;  // Reading the records costs about as much as everything else.

// Returns the decided part of a record, without figures that become durable only with a rank's next event (the restart
// history, an attempt's last step): nothing depends on them, and a restarted controller learns them again.
std::string decided(const job::JobRecord& job) {
  std::string reserved;
  for (const auto& [node, devices] : job.reserved) absl::StrAppend(&reserved, " ", node, ":", devices);
  return absl::StrCat(job.name, " ", job::name(job.state), ", attempts ", job.attempts, ", events ", job.events,
                      job.intent.stop ? ", is to stop" : "", job.intent.save ? " with a save" : "", " ",
                      job.failure_reason, ", priority ", job.spec.priority, ", devices", reserved, ", avoids ",
                      absl::StrJoin(job.avoided_nodes, " "));
}

std::string decided(const job::AttemptRecord& attempt) {
  std::string text = absl::StrCat(attempt.number, " of ", attempt.ranks, " ranks, ended for ", attempt.end_cause, ":");
  for (const job::Placement& one : attempt.placements) {
    absl::StrAppend(&text, " ", one.node, " ", one.first_rank, "+", one.num_ranks);
  }
  return text;
}

std::string decided(const job::Progress& progress) { return absl::StrCat("checkpoint ", progress.committed_step); }

}  // namespace

void WatchChecker::follow(const reconcile::Published* published) {
  published_ = published;
  if (published == nullptr) return;
  cursor_ = published->end();
  published->each([this](const reconcile::JobView& view) { compare(view); });
}

void WatchChecker::look() { shown_now(); }

void WatchChecker::committed(const std::vector<std::string>& jobs, int64_t revision) {
  const std::set<std::string> shown = shown_now();
  if (published_ == nullptr) return;
  for (const std::string& uid : jobs) {
    if (shown.count(uid) > 0) continue;
    violated_(absl::StrCat("revision ", revision, " changed job ", uid, ", and no watch shows it"));
  }
}

// Returns the uids of the jobs that were shown since the last call.
std::set<std::string> WatchChecker::shown_now() {
  std::set<std::string> shown;
  if (published_ == nullptr) return shown;
  const absl::StatusOr<reconcile::Published::Batch> batch = published_->changes(cursor_, 1 << 20);
  if (!batch.ok()) return shown;
  cursor_ = batch->next_cursor;
  for (const reconcile::PublishedViewPtr& view : batch->views) {
    shown.insert(view->record->uid);
    if (view->revision > store_.revision()) {
      violated_(absl::StrCat("job ", view->record->uid, " is shown at revision ", view->revision,
                             ", and the store is at ", store_.revision()));
    }
    if (++views_ % kCompareEvery == 0) compare(*view);
  }
  return shown;
}

void WatchChecker::compare(const reconcile::JobView& view) {
  const std::string& uid = view.record->uid;
  if (view.deleted) {
    const auto stored = store_.get(core::job_key(uid));
    if (stored.ok() && stored->has_value())
      violated_(absl::StrCat("job ", uid, " is shown as deleted, and is in the store"));
    return;
  }
  compare_record<job::JobRecord>(core::job_key(uid), *view.record);
  if (!view.attempts.empty()) {
    const job::AttemptRecord& newest = *view.attempts.back();
    compare_record<job::AttemptRecord>(core::attempt_key(uid, newest.number), newest);
    if (newest.end_time_ns == 0) compare_exits(uid, newest);
  }
  if (view.progress.committed_step > 0) compare_record<job::Progress>(core::progress_key(uid), view.progress);
}

template <typename Record>
void WatchChecker::compare_record(const std::string& key, const Record& shown) {
  const auto durable = store_.get(key);
  if (!durable.ok()) return;  // Set aside.
  const absl::StatusOr<Record> stored =
      durable->has_value() ? job::decode<Record>((*durable)->value) : absl::NotFoundError(key);
  const std::string what = decided(shown), is = stored.ok() ? decided(*stored) : std::string(stored.status().message());
  if (what != is) violated_(absl::StrCat(key, " is shown as ", what, ", and the store has ", is));
}

// Each exit has a separate record until the attempt has ended.
void WatchChecker::compare_exits(const std::string& uid, const job::AttemptRecord& attempt) {
  for (const job::RankExit& exit : attempt.exits) {
    const auto durable = store_.get(core::exit_key(uid, attempt.number, exit.rank));
    if (!durable.ok() || durable->has_value()) continue;
    violated_(absl::StrCat("rank ", exit.rank, " of attempt ", attempt.number, " of ", uid,
                           " is shown as ended, and the store has no record of it"));
  }
}

}  // namespace titan::simulation
