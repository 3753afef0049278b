#include "controller/api/log_tail.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/service/rpc/error.h"
#include "controller/core/keys.h"

namespace titan::api {
namespace {

constexpr int64_t kPiece = 256 << 10;

std::string explain_missing_log_of(const job::AttemptRecord& attempt, int rank) {
  std::vector<int> kept;
  bool has_failed = false;
  for (const job::RankExit& exit : attempt.exits) {
    if (exit.kept_log_bytes > 0) kept.push_back(exit.rank);
    has_failed |= exit.rank == rank && rank_protocol::has_failed(exit.exit_code, exit.signal, exit.stop_reason);
  }
  const std::string of = absl::StrCat("; the ends of logs that the controller kept for attempt ", attempt.number);
  if (attempt.logs_dropped == job::kNewerAttempts) return of + " were deleted when three newer attempts had ended";
  if (attempt.logs_dropped == job::kNoSpace) {
    return of + " were deleted for lack of space (titan-controller --kept-logs-mib), or none was kept";
  }
  // No rank of it is known to have started.
  if (attempt.num_exits == 0 && !attempt.end_cause.empty()) {
    return absl::StrCat("; attempt ", attempt.number, " ended with ", attempt.end_cause,
                        attempt.end_message.empty() ? "" : ": ", attempt.end_message);
  }
  if (kept.empty() || !has_failed) return "";
  return absl::StrCat(
      "; of ", counted(attempt.num_exits, "rank"),
      " that ended, the controller kept the ends of the logs of those that failed first or differently: ",
      rank_protocol::format_rank_list(kept));
}

}  // namespace

bool LogTail::open() {
  if (request_.name().empty()) {
    end(name_missing_error("job"));
    return false;
  }
  const std::string name = full_job_name(request_.name());
  const reconcile::JobViewPtr view = reconciler_.published().find_by_name(name);
  if (view == nullptr) {
    end(reconcile::no_such_job(name));
    return false;
  }
  uid_ = view->record->uid;
  if (request_.attempt() > view->record->attempts || request_.attempt() < 0) {
    end(no_such_attempt(*view, request_.attempt()));
    return false;
  }
  if (const absl::Status ranks = check_ranks(request_.ranks(), *view, request_.attempt()); !ranks.ok()) {
    end(ranks);
    return false;
  }
  for (const auto& attempt : view->attempts) {
    const bool newest = attempt == view->attempts.back();
    if (request_.attempt() == attempt->number || (request_.attempt() == 0 && newest)) add_sources(*attempt, false);
  }
  return true;
}

void LogTail::add_sources(const job::AttemptRecord& attempt, bool from_start) {
  attempts_.insert(attempt.number);
  const int64_t lines = from_start ? -1 : request_.tail_lines();
  const std::set<int> wanted(request_.ranks().begin(), request_.ranks().end());
  for (const job::Placement& placement : attempt.placements) {
    for (int rank = placement.first_rank; rank < placement.first_rank + placement.num_ranks; ++rank) {
      if (!wanted.empty() && !wanted.contains(rank)) continue;
      sources_.push_back({attempt.number, rank, placement.node, lines < 0 ? 0 : -1, std::max<int64_t>(lines, 0)});
    }
  }
}

void LogTail::recheck_sources() {
  for (Source& source : sources_) source.idle = false;
}

void LogTail::refill() {
  if (!opened_) {
    if (!open()) return;
    opened_ = true;
  }
  if (asking()) return;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const size_t index = (next_ + i) % sources_.size();
    Source& source = sources_[index];
    if (source.closed || source.idle) continue;
    next_ = index + 1;
    return ask(index);
  }
  finish_or_continue();
}

void LogTail::ask(size_t index) {
  const Source& source = sources_[index];
  ask_node(index, source.node, [&](int64_t request) {
    v1::ControllerMessage message;
    v1::ReadLog* read = message.mutable_read_log();
    read->set_request(request);
    read->mutable_id()->set_job_uid(uid_);
    read->mutable_id()->set_number(source.attempt);
    read->set_rank(source.rank);
    read->set_offset(source.offset);
    read->set_tail_lines(source.tail_lines);
    read->set_max_bytes(kPiece);
    return message;
  });
}

v1::LogChunk LogTail::chunk(const Source& source) const {
  v1::LogChunk chunk;
  chunk.set_attempt(source.attempt);
  chunk.set_rank(source.rank);
  chunk.set_node(source.node);
  return chunk;
}

void LogTail::notice(const Source& source, std::string text) {
  v1::LogChunk notice = chunk(source);
  notice.set_notice(std::move(text));
  add(std::move(notice));
}

// Sends the end of a failed rank's log that the controller kept. Returns false when there is none; then only `why` can
// be reported.
bool LogTail::show_kept(Source& source, const std::string& why) {
  const absl::StatusOr<std::optional<store::Record>> record =
      store_.get(core::failed_log_key(uid_, source.attempt, source.rank));
  if (!record.ok() || !*record) return false;
  const absl::StatusOr<job::FailedLog> log = job::decode<job::FailedLog>((*record)->value);
  if (!log.ok()) return false;
  notice(
      source,
      absl::StrCat(why, ": this is the end of its log that the controller kept when the rank failed, starting at byte ",
                   log->offset));
  std::string_view text = log->text;
  if (source.offset < 0) text = rank_protocol::last_lines(text, source.tail_lines);
  if (source.offset > log->offset) text.remove_prefix(std::min<size_t>(text.size(), source.offset - log->offset));
  const int64_t offset = log->offset + static_cast<int64_t>(log->text.size() - text.size());
  if (!text.empty()) {
    v1::LogChunk piece = chunk(source);
    piece.set_data(std::string(text));
    piece.set_offset(offset);
    add(std::move(piece));
  }
  source.closed = true;
  return true;
}

// Explains a missing log. For a rank that failed: what became of the end of its log, or which ranks' logs were kept
// instead. For a rank that never started: what ended its attempt.
std::string LogTail::explain_missing_log(const Source& source) const {
  const reconcile::JobViewPtr view = reconciler_.published().find(uid_);
  if (view == nullptr) return "";
  for (const auto& attempt : view->attempts) {
    if (attempt->number == source.attempt) return explain_missing_log_of(*attempt, source.rank);
  }
  return "";
}

void LogTail::on_unreachable(size_t index, const std::string& why) {
  Source& source = sources_[index];
  const std::string what = absl::StrCat("node ", source.node, " ", why);
  if (!source.noticed && show_kept(source, what)) return;
  if (!std::exchange(source.noticed, true)) notice(source, what + explain_missing_log(source));
  source.idle = true;
  const reconcile::JobViewPtr view = reconciler_.published().find(uid_);
  if (!request_.follow() || view == nullptr || job::is_final(view->record->state)) source.closed = true;
}

void LogTail::on_answer(size_t index, const v1::LogData& data) {
  Source& source = sources_[index];
  source.noticed = false;
  const int64_t wanted = source.offset;
  if (!data.error().empty() && show_kept(source, absl::StrCat("node ", source.node, " says: ", data.error()))) return;
  if (data.dropped_bytes() > 0 && wanted >= 0 && data.offset() > wanted) {
    notice(source, absl::StrCat(data.offset() - wanted, " older bytes were dropped"));
  }
  std::string text = data.data();
  if (!data.closed() && !text.empty()) {  // Sends whole lines; the rest follows with its line end.
    const size_t end = text.rfind('\n');
    if (end != std::string::npos) {
      text.resize(end + 1);
    } else if (static_cast<int64_t>(text.size()) < kPiece) {
      text.clear();
    }
  }
  source.offset = data.offset() + static_cast<int64_t>(text.size());
  source.idle = data.end();
  source.closed = data.closed() || (data.end() && !request_.follow());
  if (!text.empty()) {
    v1::LogChunk piece = chunk(source);
    piece.set_data(std::move(text));
    piece.set_offset(data.offset());
    add(std::move(piece));
  }
  if (!data.error().empty()) {
    notice(source, data.error() + explain_missing_log(source));
    if (data.unreachable()) unreachable_ = absl::StrCat("rank ", source.rank, " on node ", source.node);
    source.closed = source.closed || !request_.follow();
  }
}

// Runs when there is nothing to read now. A follower continues with later attempts and ends with the job.
void LogTail::finish_or_continue() {
  const bool all_closed =
      std::all_of(sources_.begin(), sources_.end(), [](const Source& source) { return source.closed; });
  if (!request_.follow()) {
    if (all_closed && unreachable_.empty()) end(absl::OkStatus());
    if (all_closed && !unreachable_.empty()) {
      end(rpc::error(absl::StatusCode::kFailedPrecondition, "LOG_UNREACHABLE",
                     absl::StrCat("the log of ", unreachable_,
                                  " cannot be reached now: the state folder of its worker was deleted or moved away")));
    }
    return;
  }
  const reconcile::JobViewPtr view = reconciler_.published().find(uid_);
  if (view == nullptr) return end(absl::OkStatus());
  if (request_.attempt() == 0) {
    for (const auto& attempt : view->attempts) {
      const bool later = attempts_.empty() || attempt->number > *attempts_.rbegin();
      if (later) return add_sources(*attempt, true);
    }
  }
  const bool over =
      job::is_final(view->record->state) || (request_.attempt() != 0 && request_.attempt() < view->record->attempts);
  if (all_closed && over) end(absl::OkStatus());
}

}  // namespace titan::api
