// The ends of failed ranks' logs, kept beside the attempt for when its nodes are gone.

#include "common/rank_protocol/failed_logs.h"

#include <algorithm>

#include "controller/core/core.h"
#include "controller/core/keys.h"

namespace titan::core {
namespace {

constexpr size_t kAttemptsWithLogs = 3;  // Of a job: the newest that have ended.

}  // namespace

// A record of its own: the attempt's is read whenever the job is shown. True when the exit now says so.
bool Core::keep_failed_log(const LiveJob& job, const v1::RankExitReport& said, job::RankExit& exit, Change& change) {
  if (said.log_tail().empty() || exit.kept_log_bytes > 0) return false;
  if (!rank_protocol::has_failed(exit.exit_code, exit.signal, exit.stop_reason)) return false;
  rank_protocol::FailedLogs kept;
  for (const auto& [rank, other] : job.attempt->exits) {
    if (other.kept_log_bytes > 0) kept.add(other.exit_code, other.signal, other.message);
  }
  if (!kept.take(exit.exit_code, exit.signal, exit.message)) return false;
  job::FailedLog log{said.log_offset(), rank_protocol::failed_log(said.log_tail())};
  log.offset += static_cast<int64_t>(said.log_tail().size() - log.text.size());
  exit.kept_log_bytes = static_cast<int64_t>(log.text.size());
  change.mutations.push_back(
      store::put(failed_log_key(job.record.uid, job.attempt->record.number, exit.rank), job::encode(log)));
  return true;
}

// Those of the attempt that is one too many now. Its record says so: what is listed as kept is there.
void Core::drop_old_failed_logs(LiveJob& job, Change& change) {
  if (job.past.size() <= kAttemptsWithLogs) return;
  std::shared_ptr<const job::AttemptRecord>& old = job.past[job.past.size() - 1 - kAttemptsWithLogs];
  const auto is_kept = [](const job::RankExit& exit) { return exit.kept_log_bytes > 0; };
  if (std::none_of(old->exits.begin(), old->exits.end(), is_kept)) return;
  job::AttemptRecord record = *old;
  for (job::RankExit& exit : record.exits) exit.kept_log_bytes = 0;
  change.erased_prefixes.push_back(failed_logs_prefix(job.record.uid, record.number));
  put_attempt(change, job, record);
  old = std::make_shared<const job::AttemptRecord>(std::move(record));
}

}  // namespace titan::core
