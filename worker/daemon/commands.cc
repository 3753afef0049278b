// What the controller's commands do.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rank_protocol/spool.h"
#include "common/text/counted.h"
#include "worker/daemon/daemon.h"
#include "worker/shim/log_file.h"
#include "worker/shim/process.h"

namespace titan::daemon {
namespace {

using Phase = AttemptRecord::Phase;

constexpr absl::Duration kOldRanksPause = absl::Milliseconds(5);
constexpr int64_t kMaxLogBytes = 1 << 20;

AttemptKey key_of(const v1::AttemptId& id) { return {id.job_uid(), id.number()}; }

AttemptRecord record_of(const v1::Prepare& prepare) {
  AttemptRecord record;
  record.key = key_of(prepare.id());
  record.leader = prepare.leader();
  record.ranks.assign(prepare.ranks().begin(), prepare.ranks().end());
  record.dump_folder = prepare.dump_folder();
  record.token = prepare.token();
  record.folder_id = prepare.folder_id();
  record.orphan_timeout_seconds = prepare.orphan_timeout_seconds();
  return record;
}

}  // namespace

Attempt* Daemon::find(const v1::AttemptId& id) {
  const auto found = attempts_.find(key_of(id));
  return found == attempts_.end() ? nullptr : found->second.get();
}

void Daemon::on_message(const v1::ControllerMessage& message) {
  if (!connected_) return;  // Of a controller that this worker does not follow.
  switch (message.kind_case()) {
    case v1::ControllerMessage::kPrepare:
      return on_prepare(message.prepare());
    case v1::ControllerMessage::kStart: {
      const v1::Start& start = message.start();
      if (Attempt* const attempt = find(start.id())) return attempt->start(start.store_host(), start.store_port());
      return answer_unknown(key_of(start.id()), v1::AttemptReport::REFUSED,
                            {"NOT_PREPARED", "this node has not prepared that attempt"});
    }
    case v1::ControllerMessage::kStop: {
      const v1::Stop& stop = message.stop();
      if (Attempt* const attempt = find(stop.id())) {
        return attempt->stop(stop.save(), stop.grace_milliseconds(), stop.reason());
      }
      return answer_unknown(key_of(stop.id()), v1::AttemptReport::ENDED,
                            {"NOT_PREPARED", "nothing of that attempt runs on this node"});
    }
    case v1::ControllerMessage::kCheckpoint:
      if (Attempt* const attempt = find(message.checkpoint().id())) attempt->checkpoint();
      return;
    case v1::ControllerMessage::kEventsAck:
      if (Attempt* const attempt = find(message.events_ack().id())) {
        attempt->acknowledge(message.events_ack().rank(), message.events_ack().sequence());
      }
      return;
    case v1::ControllerMessage::kForget:
      return on_forget(key_of(message.forget().id()));
    case v1::ControllerMessage::kReadLog:
      return on_read_log(message.read_log());
    case v1::ControllerMessage::kReadTrace:
      return on_read_trace(message.read_trace());
    case v1::ControllerMessage::kBeatAck:
      heard_at_ = shim::monotonic_nanos();
      return;
    case v1::ControllerMessage::kWelcome:
    case v1::ControllerMessage::KIND_NOT_SET:
      return;  // A newer controller may send what this worker does not know.
  }
}

void Daemon::answer_unknown(const AttemptKey& key, v1::AttemptReport::Phase phase, const Refusal& why) {
  v1::WorkerMessage message;
  v1::AttemptReport* const report = message.mutable_attempt();
  report->mutable_id()->set_job_uid(key.job_uid);
  report->mutable_id()->set_number(key.number);
  report->set_phase(phase);
  report->set_error_reason(why.reason);
  report->set_error_message(why.message);
  if (why.reason == "STALE_ATTEMPT") report->set_highest_attempt(state_.highest_attempt(key.job_uid).value_or(0));
  session_->send(std::move(message));
}

Refusal Daemon::check_prepare(const v1::Prepare& prepare, const AttemptKey& key) const {
  if (!valid_uid(key.job_uid) || key.number < 1 || prepare.ranks().empty()) {
    return {"BAD_REQUEST", absl::StrCat("prepare: job uid '", key.job_uid, "', attempt ", key.number, ", ",
                                        counted(prepare.ranks_size(), "rank"))};
  }
  if (shutdowns_ > 0) return {"NODE_STOPPING", "the worker daemon is stopping and takes no new ranks"};
  const absl::StatusOr<int> highest = state_.highest_attempt(key.job_uid);
  if (!highest.ok()) return {"STATE_FOLDER_UNUSABLE", std::string(highest.status().message())};
  if (key.number < *highest) {
    return {"STALE_ATTEMPT", absl::StrCat("attempt ", key.number, " is older than attempt ", *highest,
                                          " of the same job, which this node has seen")};
  }
  return {};
}

void Daemon::on_prepare(const v1::Prepare& prepare) {
  const AttemptKey key = key_of(prepare.id());
  if (waiting_.count(key) > 0) return;
  if (Attempt* const attempt = find(prepare.id())) return attempt->say_state();
  Refusal refusal = check_prepare(prepare, key);
  if (!refusal) {
    const absl::Status raised = state_.raise_fence(key);
    if (!raised.ok()) refusal = {"STATE_FOLDER_UNUSABLE", std::string(raised.message())};
  }
  if (refusal) return answer_unknown(key, v1::AttemptReport::REFUSED, refusal);
  for (const auto& [other, attempt] : attempts_) {
    if (other.job_uid == key.job_uid && other.number < key.number && !attempt->over()) {
      attempt->stop(/*save=*/false, 0, absl::StrCat("superseded by attempt ", key.number));
    }
  }
  waiting_.insert(key);
  prepare_when_older_are_gone(prepare);
}

bool Daemon::any_older(const AttemptKey& key) const {
  for (const auto& [other, attempt] : attempts_) {
    if (other.job_uid == key.job_uid && other.number < key.number && !attempt->over()) return true;
  }
  return false;
}

void Daemon::prepare_when_older_are_gone(const v1::Prepare& prepare) {
  AttemptRecord record = record_of(prepare);
  const Refusal stale = check_prepare(prepare, record.key);  // A newer attempt may have come while this one waited.
  if (!stale && any_older(record.key)) {
    loop_.after(kOldRanksPause, [this, prepare] { prepare_when_older_are_gone(prepare); });
    return;
  }
  waiting_.erase(record.key);
  if (stale) return answer_unknown(record.key, v1::AttemptReport::REFUSED, stale);
  const std::set<int> free = free_devices();
  if (free.size() < record.ranks.size()) {
    return answer_unknown(
        record.key, v1::AttemptReport::REFUSED,
        {"NO_DEVICES",
         absl::StrCat(counted(record.ranks.size(), "rank needs a device", "ranks need a device each"), ", ",
                      free.size(), " of ", resources_.devices, free.size() == 1 ? " is" : " are", " free")});
  }
  record.devices.assign(free.begin(), std::next(free.begin(), static_cast<int64_t>(record.ranks.size())));
  const AttemptKey key = record.key;
  const std::string visible = resources_.device == "cuda" ? absl::StrJoin(record.devices, ",") : "";
  absl::Status saved = state_.add(record);
  if (!saved.ok()) {
    return answer_unknown(key, v1::AttemptReport::REFUSED, {"STATE_FOLDER_UNUSABLE", std::string(saved.message())});
  }
  const auto attempt = std::make_shared<Attempt>(host_, std::move(record));
  attempts_[key] = attempt;
  attempt->prepare(prepare.launch_json(), visible);
}

std::set<int> Daemon::free_devices() const {
  std::set<int> free;
  for (int device = 0; device < resources_.devices; ++device) free.insert(device);
  for (const auto& [key, attempt] : attempts_) {
    if (attempt->over()) continue;
    for (const int device : attempt->record().devices) free.erase(device);
  }
  return free;
}

void Daemon::on_forget(const AttemptKey& key) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) return;
  if (found->second->over()) return forget(key);
  forgetting_.insert(key);
  found->second->stop(/*save=*/false, 0, "forgotten by the controller");
}

void Daemon::forget(const AttemptKey& key) {
  const auto found = attempts_.find(key);
  AttemptRecord record = found->second->record();
  log_bytes_of_ended_ += found->second->log_bytes_dropped();
  attempts_.erase(found);
  record.phase = Phase::kForgotten;
  const absl::Status saved = state_.save(record);
  if (!saved.ok()) log_line(std::string(saved.message()));
  state_.strip(key);
  clean_up();
}

void Daemon::on_read_log(const v1::ReadLog& request) {
  v1::WorkerMessage message;
  v1::LogData* const data = message.mutable_log();
  data->set_request(request.request());
  const AttemptKey key = key_of(request.id());
  const Attempt* const attempt = find(request.id());
  // Looked at before reading: what a rank printed before it was gone is then part of what is read.
  const bool closed = attempt == nullptr || !attempt->may_print(request.rank());
  absl::StatusOr<shim::LogChunk> chunk = absl::NotFoundError("no such job");
  if (valid_uid(key.job_uid)) {
    const int64_t bytes = request.max_bytes() > 0 ? std::min(request.max_bytes(), kMaxLogBytes) : kMaxLogBytes;
    chunk = shim::read_log(rank_protocol::log_path(state_.run_folder(key), request.rank()), request.offset(),
                           request.tail_lines(), bytes);
  }
  if (chunk.ok()) {
    data->set_offset(chunk->offset);
    data->set_data(std::move(chunk->data));
    data->set_dropped_bytes(chunk->dropped_bytes);
    data->set_end(chunk->end);
    data->set_closed(closed && chunk->end);
  } else {
    data->set_end(true);
    data->set_closed(closed);
    if (closed || !absl::IsNotFound(chunk.status())) data->set_error(std::string(chunk.status().message()));
  }
  session_->send(std::move(message));
}

}  // namespace titan::daemon
