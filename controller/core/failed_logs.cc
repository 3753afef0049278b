#include "controller/core/failed_logs.h"

#include <algorithm>

#include "common/rank_protocol/failed_ranks.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {

void KeptLogs::add(const AttemptKey& key, int64_t bytes) {
  if (bytes <= 0) return;
  attempts_[key].bytes += bytes;
  bytes_ += bytes;
}

void KeptLogs::mark_ended(const AttemptKey& key, int64_t end_time_ns) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end() || found->second.end_time_ns) return;
  found->second.end_time_ns = end_time_ns;
  by_age_.emplace(end_time_ns, key);
}

int64_t KeptLogs::erase(const AttemptKey& key) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) return 0;
  const Entry of = found->second;
  if (of.end_time_ns) by_age_.erase({*of.end_time_ns, key});
  attempts_.erase(found);
  bytes_ -= of.bytes;
  return of.bytes;
}

void KeptLogs::erase_job(const std::string& uid) {
  for (auto at = attempts_.lower_bound({uid, 0}); at != attempts_.end() && at->first.first == uid;) {
    const AttemptKey key = (at++)->first;
    erase(key);
  }
}

std::optional<AttemptKey> KeptLogs::oldest() const {
  if (by_age_.empty()) return std::nullopt;
  return by_age_.begin()->second;
}

// The ends of failed ranks' logs are kept with the attempt, for when its nodes are gone.

namespace {

constexpr size_t kAttemptsWithLogs = 3;  // Per job: the newest attempts that have ended.

bool is_named(const job::AttemptRecord& attempt, int rank) {
  return std::find(attempt.named_ranks.begin(), attempt.named_ranks.end(), rank) != attempt.named_ranks.end();
}

bool is_wanted(const LiveAttempt& attempt, const job::RankExit& exit) {
  rank_protocol::FailedLogs kept;
  for (const auto& [rank, other] : attempt.exits) {
    if (other.kept_log_bytes > 0) kept.add(other.exit_code, other.signal, other.message);
  }
  if (is_named(attempt.record, exit.rank)) return kept.take_named(exit.exit_code, exit.signal, exit.message);
  return rank_protocol::has_failed(exit.exit_code, exit.signal, exit.stop_reason) &&
         kept.take(exit.exit_code, exit.signal, exit.message);
}

// Drops the attempt's logs. Its record then says so, since logs that it lists must be in the store.
void drop_logs(Step& step, std::shared_ptr<const job::AttemptRecord>& attempt, LiveJob& job, const char* why,
               Change& change) {
  const int64_t dropped = step.state.kept_logs.erase({job.record.uid, attempt->number});
  if (dropped == 0) return;
  job::AttemptRecord record = *attempt;
  for (job::RankExit& exit : record.exits) exit.kept_log_bytes = 0;
  record.logs_dropped = why;
  change.erased_prefixes.push_back(failed_logs_prefix(job.record.uid, record.number));
  put_attempt(change, job, record);
  attempt = std::make_shared<const job::AttemptRecord>(std::move(record));
  step.measure(MetricSample::kLogsDropped, static_cast<double>(dropped), why);
}

// The logs of a job that is being deleted go with it: nothing is written alongside its deletion.
void drop_oldest_logs(Step& step, const AttemptKey& key) {
  LiveJob* live = step.state.jobs.find(key.first);
  const JobViewPtr over = step.state.jobs.find_over(key.first);
  LiveJob ended = over != nullptr ? ended_job(*over) : LiveJob();
  LiveJob& job = live != nullptr ? *live : ended;
  const auto of_key = [&](const auto& attempt) { return attempt->number == key.second; };
  const auto found = std::find_if(job.past.begin(), job.past.end(), of_key);
  if (found == job.past.end() || step.state.deletions.is_under_way(key.first)) {
    step.state.kept_logs.erase(key);
    return;
  }
  Change change;
  drop_logs(step, *found, job, job::kNoSpace, change);
  if (live == nullptr) {  // A live job is shown by its next change, and may be in the middle of one.
    step.state.jobs.end(key.first, view_of(job));
    show(change, job);
  }
  step.commit(std::move(change));
}

}  // namespace

// The log is a separate record, because the attempt's record is read whenever the job is shown.
bool keep_failed_log(Step& step, LiveJob& job, const job::FailedLog& said, job::RankExit& exit, Change& change) {
  if (said.text.empty() || exit.kept_log_bytes > 0 || !is_wanted(*job.attempt, exit)) return false;
  job::FailedLog log{said.offset, rank_protocol::failed_log(said.text)};
  const auto size = static_cast<int64_t>(log.text.size());
  if (!evict_logs(step, size)) {
    job.attempt->record.logs_dropped = job::kNoSpace;  // This is written with the attempt's end.
    step.measure(MetricSample::kLogsDropped, static_cast<double>(size), job::kNoSpace);
    return false;
  }
  log.offset += static_cast<int64_t>(said.text.size()) - size;
  exit.kept_log_bytes = size;
  step.state.kept_logs.add(job.key(), size);
  change.mutations.push_back(
      store::put(failed_log_key(job.record.uid, job.attempt->record.number, exit.rank), job::encode(log)));
  return true;
}

// The logs of the attempt that has just ended may be dropped from now on. Those of the oldest one are now one too many.
void close_failed_logs(Step& step, LiveJob& job, Change& change) {
  step.state.kept_logs.mark_ended({job.record.uid, job.past.back()->number}, step.now.wall_ns());
  if (job.past.size() <= kAttemptsWithLogs) return;
  drop_logs(step, job.past[job.past.size() - 1 - kAttemptsWithLogs], job, job::kNewerAttempts, change);
}

// Drops the oldest first.
bool evict_logs(Step& step, int64_t bytes) {
  while (step.state.kept_logs.bytes() + bytes > step.options.kept_logs_bytes) {
    const std::optional<AttemptKey> oldest = step.state.kept_logs.oldest();
    if (!oldest) return false;
    drop_oldest_logs(step, *oldest);
  }
  return true;
}

// For jobs that were loaded, or whose deletion failed.
void count_kept_logs(KeptLogs& kept_logs, const JobView& view) {
  for (const auto& attempt : view.attempts) {
    const AttemptKey key{view.record->uid, attempt->number};
    kept_logs.erase(key);
    for (const job::RankExit& exit : attempt->exits) kept_logs.add(key, exit.kept_log_bytes);
    if (attempt->end_time_ns != 0) kept_logs.mark_ended(key, attempt->end_time_ns);
  }
}

}  // namespace titan::core
