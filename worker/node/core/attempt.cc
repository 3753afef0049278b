// Takes an attempt from Prepare to STARTED, and recovers it from the disk after a restart.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "worker/node/core/step.h"

namespace titan::node {
namespace {

using Kind = Pending::Kind;
using Phase = AttemptRecord::Phase;

Attempt make_attempt(AttemptRecord record, const std::map<int, SpoolTail::Place>& places) {
  Attempt attempt;
  attempt.record = std::move(record);
  for (const int number : attempt.record.ranks) {
    RankState& rank = attempt.ranks.emplace_back();
    rank.rank = number;
    const auto place = places.find(number);
    if (place != places.end()) rank.tail = SpoolTail(place->second);
  }
  return attempt;
}

AttemptRecord record_of(const v1::Prepare& prepare) {
  AttemptRecord record;
  record.key = {prepare.id().job_uid(), prepare.id().number()};
  record.leader = prepare.leader();
  record.ranks.assign(prepare.ranks().begin(), prepare.ranks().end());
  record.dump_folder = prepare.dump_folder();
  record.token = prepare.token();
  record.folder_id = prepare.folder_id();
  record.run_as = prepare.run_as();
  record.run_as_local = prepare.run_as_local();
  record.orphan_timeout_seconds = prepare.orphan_timeout_seconds();
  return record;
}

std::string stale_message(const AttemptKey& key, int highest) {
  return absl::StrCat("attempt ", key.number, " is older than attempt ", highest,
                      " of the same job, which this node has seen");
}

// Returns the number of preparations whose attempt was given up. Each occupies a thread that waits for its storage.
size_t late_preparations(const NodeState& state) {
  return static_cast<size_t>(std::count_if(state.pending.begin(), state.pending.end(), [&state](const auto& item) {
    if (item.second.kind != Kind::kPrepare) return false;
    const auto attempt = state.attempts.find(item.second.key);
    return attempt == state.attempts.end() || attempt->second.op != item.first;
  }));
}

Refusal check(const Step& step, const v1::Prepare& message, const AttemptKey& key) {
  if (!valid_uid(key.job_uid) || key.number < 1 || message.ranks().empty()) {
    return {"BAD_REQUEST", absl::StrCat("prepare: the job uid ('", key.job_uid, "'), the attempt (", key.number,
                                        ") or the number of ranks (", message.ranks_size(), ") is not valid")};
  }
  if (!message.device_indices().empty() && message.device_indices_size() != message.ranks_size()) {
    return {"BAD_REQUEST",
            absl::StrCat("prepare: the controller chose ", counted(message.device_indices_size(), "device"), " for ",
                         counted(message.ranks_size(), "rank"))};
  }
  if (step.state.shutdowns > 0) return {"NODE_STOPPING", "the worker daemon is stopping and accepts no new ranks"};
  const bool hangs = std::any_of(step.state.pending.begin(), step.state.pending.end(), [&key](const auto& item) {
    return item.second.kind == Kind::kPrepare && item.second.key == key;
  });
  if (hangs) return {"PREPARE_TIMEOUT", "an earlier preparation of this attempt still waits for its storage"};
  const size_t late = late_preparations(step.state);
  if (late >= kMaxLatePreparations) {
    return {"PREPARE_TIMEOUT", absl::StrCat(late, " earlier preparations still wait for their storage")};
  }
  return {};
}

// Gives up an attempt that has nothing on the disk.
void drop(Step& step, const AttemptKey& key, const Refusal& why, int highest = 0) {
  erase_attempt(step, key);
  answer_unknown(step, key, v1::AttemptReport::REFUSED, why, highest);
}

// Returns an older attempt of the same job whose ranks may still run, or null.
const Attempt* older_attempt(const NodeState& state, const AttemptKey& key) {
  for (const auto& [other, attempt] : state.attempts) {
    if (other.job_uid == key.job_uid && other.number < key.number && (!attempt.ending() || attempt.shim_may_live())) {
      return &attempt;
    }
  }
  return nullptr;
}

// Returns the devices that are being freed without any further request.
std::set<int> devices_being_freed(const NodeState& state) {
  std::set<int> devices;
  for (const auto& [key, attempt] : state.attempts) {
    const bool going = attempt.stopping || attempt.ending() || attempt.end != Attempt::End::kNo;
    if (!attempt.holds_devices() || !going || attempt.overdue) continue;
    devices.insert(attempt.record.devices.begin(), attempt.record.devices.end());
  }
  return devices;
}

struct Devices {
  std::vector<int> granted;  // One per rank. Empty: wait, or see `refusal`.
  Refusal refusal;           // Set when the devices will never be available.
};

// Grants the devices that the controller has chosen.
Devices requested_devices(const Step& step, const Attempt& attempt, const std::set<int>& free) {
  const int known = step.config.resources.devices();
  const std::set<int> soon = devices_being_freed(step.state);
  bool wait = false;
  for (const int device : attempt.requested_devices) {
    if (device < 0 || device >= known) {
      return {{}, {"NO_DEVICES", absl::StrCat("there is no device ", device, ": this node has ", known)}};
    }
    if (free.count(device) > 0) continue;
    if (soon.count(device) == 0) {
      return {{}, {"DEVICE_TAKEN", absl::StrCat("device ", device, " is in use by another attempt")}};
    }
    wait = true;
  }
  if (wait) return {};
  return {attempt.requested_devices, {}};
}

// Grants the first free devices, for a controller that has not chosen.
Devices any_devices(const Step& step, const Attempt& attempt, const std::set<int>& free) {
  const size_t wanted = attempt.record.ranks.size();
  if (free.size() >= wanted) return {{free.begin(), std::next(free.begin(), static_cast<int64_t>(wanted))}, {}};
  if (free.size() + devices_being_freed(step.state).size() >= wanted) return {};
  return {{},
          {"NO_DEVICES",
           absl::StrCat(counted(wanted, "rank needs a device", "ranks need a device each"), ", ", free.size(), " of ",
                        step.config.resources.devices(), free.size() == 1 ? " is" : " are", " free")}};
}

void continue_preparing(Step& step, Attempt& attempt) {
  const AttemptKey& key = attempt.record.key;
  const int highest = step.state.highest[key.job_uid];
  if (highest > key.number) {
    const AttemptKey copy = key;
    return drop(step, copy, {"STALE_ATTEMPT", stale_message(copy, highest)}, highest);
  }
  if (older_attempt(step.state, key) != nullptr) return;
  const std::set<int> free = free_devices(step.config, step.state);
  Devices devices =
      attempt.requested_devices.empty() ? any_devices(step, attempt, free) : requested_devices(step, attempt, free);
  if (devices.refusal) {
    const AttemptKey copy = key;
    return drop(step, copy, devices.refusal);
  }
  if (devices.granted.empty()) return;
  attempt.record.devices = std::move(devices.granted);
  attempt.stage = Stage::kRecording;
  attempt.op = step.begin({.kind = Kind::kAddRecord, .key = key});
  step.out(AddRecord{attempt.op, attempt.record});
}

}  // namespace

void answer_unknown(Step& step, const AttemptKey& key, v1::AttemptReport::Phase phase, const Refusal& why,
                    int highest) {
  if (!step.state.connected) return;
  v1::WorkerMessage message;
  v1::AttemptReport* const report = message.mutable_attempt();
  report->mutable_id()->set_job_uid(key.job_uid);
  report->mutable_id()->set_number(key.number);
  report->set_phase(phase);
  report->set_error_reason(why.reason);
  report->set_error_message(why.message);
  report->set_highest_attempt(highest);
  report->set_leader_epoch(step.state.leader_epoch);
  step.send(std::move(message));
}

void erase_attempt(Step& step, const AttemptKey& key) {
  const auto found = step.state.attempts.find(key);
  if (found == step.state.attempts.end()) return;
  const AttemptKey copy = key;  // `key` may be a reference into the attempt.
  step.state.log_bytes_of_forgotten += found->second.log_bytes_dropped;
  step.state.memory_kills_of_forgotten += found->second.memory_kills();
  if (found->second.stage > Stage::kPreparing) step.out(UnwatchSpools{copy, found->second.record.ranks});
  step.state.attempts.erase(found);
  const bool others = std::any_of(step.state.attempts.begin(), step.state.attempts.end(),
                                  [&copy](const auto& item) { return item.first.job_uid == copy.job_uid; });
  if (!others) step.state.highest.erase(copy.job_uid);
}

void prepare(Step& step, const v1::Prepare& message) {
  AttemptRecord record = record_of(message);
  const AttemptKey key = record.key;
  if (Attempt* const attempt = step.find(key)) return report(step, *attempt);
  if (const Refusal refusal = check(step, message, key)) {
    return answer_unknown(step, key, v1::AttemptReport::REFUSED, refusal);
  }
  Attempt attempt = make_attempt(std::move(record), {});
  attempt.launch_json = message.launch_json();
  attempt.requested_devices.assign(message.device_indices().begin(), message.device_indices().end());
  const absl::Duration asked = duration_of(message.deadline_milliseconds());
  attempt.prepare_by = step.now.monotonic + (asked > absl::ZeroDuration() ? asked : kPrepareTimeout);
  attempt.op = step.begin({.kind = Kind::kFence, .key = key});
  const Op op = attempt.op;
  step.state.attempts.emplace(key, std::move(attempt));
  step.out(RaiseFence{op, key});
}

void on_fence_raised(Step& step, const AttemptKey& key, const FenceRaised& done) {
  if (done.is_unreadable) {
    note(step, key, journal::Level::kError, "FenceUnreadable", done.error);
    return drop(step, key, {"FENCE_UNREADABLE", done.error});
  }
  if (!done.error.empty()) {
    on_write_failed(step, done.error);
    return drop(step, key, {"STATE_FOLDER_UNUSABLE", done.error});
  }
  if (!done.damage.empty()) note(step, key, journal::Level::kWarning, "FenceDamaged", done.damage);
  if (done.highest > key.number) {
    return drop(step, key, {"STALE_ATTEMPT", stale_message(key, done.highest)}, done.highest);
  }
  int& highest = step.state.highest[key.job_uid];
  highest = std::max(highest, key.number);
  Attempt& attempt = *step.find(key);
  attempt.stage = Stage::kWaiting;
  attempt.op = 0;
  std::vector<AttemptKey> older;
  for (const auto& [other, it] : step.state.attempts) {
    if (other.job_uid == key.job_uid && other.number < key.number && !it.ending()) older.push_back(other);
  }
  for (const AttemptKey& other : older) {
    stop(step, *step.find(other), /*save=*/false, 0, absl::StrCat("superseded by attempt ", key.number));
  }
}

void prepare_waiting(Step& step) {
  std::vector<AttemptKey> waiting;
  for (const auto& [key, attempt] : step.state.attempts) {
    if (attempt.stage == Stage::kWaiting) waiting.push_back(key);
  }
  for (const AttemptKey& key : waiting) continue_preparing(step, *step.find(key));
}

void on_recorded(Step& step, const AttemptKey& key, const std::string& error) {
  if (!error.empty()) {
    step.out(DeleteFolder{key});
    on_write_failed(step, error);
    return drop(step, key, {"STATE_FOLDER_UNUSABLE", error});
  }
  Attempt& attempt = *step.find(key);
  attempt.stage = Stage::kPreparing;
  attempt.op = step.begin({.kind = Kind::kPrepare, .key = key, .record = attempt.record});
  step.out(PrepareFolder{attempt.op, attempt.record, std::exchange(attempt.launch_json, {})});
}

void on_prepared(Step& step, const Pending& what, const FolderPrepared& done) {
  Attempt* const attempt = step.find(what.key);
  if (attempt == nullptr || attempt->op != done.op) {
    if (!done.refusal) step.out(DiscardPrepared{what.record, attempt == nullptr});
    return;
  }
  if (done.refusal) return refuse(step, *attempt, done.refusal);
  attempt->record.folder_id = done.folder_id;
  attempt->facts = done.facts;
  attempt->stage = Stage::kSpawning;
  attempt->shim = ShimState::kSpawning;
  attempt->op = attempt->link = step.begin({.kind = Kind::kSpawn, .key = what.key});
  step.out(WatchSpools{what.key, attempt->record.ranks});
  step.out(SpawnShim{attempt->link, what.key});
}

void on_live_written(Step& step, Attempt& attempt, const std::string& error) {
  // An attempt that is reported as PREPARED must be prepared after a restart, too.
  if (!error.empty()) {
    on_write_failed(step, error);
    return refuse(step, attempt, {"STATE_FOLDER_UNUSABLE", error});
  }
  attempt.stage = Stage::kLive;
  attempt.op = 0;
  attempt.was_live = true;
  attempt.prepare_by = kNever;
  report(step, attempt);
  continue_starting(step, attempt);
}

void preparation_overdue(Step& step, Attempt& attempt) {
  const AttemptKey key = attempt.record.key;
  attempt.prepare_by = kNever;
  std::string why;
  switch (attempt.stage) {
    case Stage::kWaiting: {
      const Attempt* const older = older_attempt(step.state, key);
      if (older == nullptr) {
        why = "attempts that are being stopped still hold the devices that it needs";
      } else {
        why = absl::StrCat("attempt ", older->record.key.number, " of the same job has not ended",
                           older->overdue_message.empty() ? "" : ": ", older->overdue_message);
      }
      break;
    }
    case Stage::kPreparing:
      why = absl::StrCat("the storage of the dump folder ", attempt.record.dump_folder, " does not answer");
      break;
    case Stage::kSpawning:
      why = "titan-shim does not answer";
      break;
    default:
      why = "the state folder does not answer";
  }
  const Refusal refusal = {"PREPARE_TIMEOUT", absl::StrCat("not prepared in time: ", why)};
  if (attempt.stage < Stage::kPreparing) return drop(step, key, refusal);
  if (!attempt.ending()) refuse(step, attempt, refusal);
}

void start(Step& step, Attempt& attempt, const v1::Start& message) {
  if (attempt.over() || attempt.started) return report(step, attempt);
  if (attempt.ending() || attempt.stopping || attempt.start) return;
  attempt.start = ShimCommand{
      .kind = ShimCommand::Kind::kStart, .store_host = message.store_host(), .store_port = message.store_port()};
  continue_starting(step, attempt);
}

void continue_starting(Step& step, Attempt& attempt) {
  if (attempt.stage != Stage::kLive || !attempt.start || attempt.started || attempt.stopping) return;
  if (attempt.token_seen) {
    if (attempt.shim == ShimState::kLinked) step.out(SendToShim{attempt.record.key, attempt.link, *attempt.start});
    return;
  }
  if (attempt.checking_token != 0) return;
  attempt.start_by = step.now.monotonic + step.config.token_timeout + kStartTimeout;
  attempt.checking_token = step.begin({.kind = Kind::kToken, .key = attempt.record.key});
  step.out(CheckToken{attempt.checking_token, attempt.record});
}

void on_token_checked(Step& step, Attempt& attempt, const Refusal& refusal) {
  attempt.checking_token = 0;
  attempt.start_by = kNever;
  if (attempt.ending() || attempt.stopping) return;
  if (refusal) return refuse(step, attempt, refusal);
  attempt.token_seen = true;
  continue_starting(step, attempt);
}

void on_found(Step& step, const RecoveredAttempt& found) {
  const AttemptKey key = found.record.key;
  const bool began = found.status.has_value();
  if (found.record.phase == Phase::kPreparing && found.shim == RecoveredAttempt::Shim::kGone && !began) {
    return step.out(DeleteFolder{key});  // Killed before the shim began: treated as never requested.
  }
  Attempt attempt = make_attempt(found.record, found.places);
  attempt.facts = found.facts;
  for (const std::string& damage : found.damage) note(step, key, journal::Level::kWarning, "RunFolderDamaged", damage);
  note_exits_damage(step, attempt, found.exits_damage);
  // The shim may answer only after the first session is up. Without its last status from the disk, the inventory would
  // report running ranks as PREPARED, and a controller with an older store would not adopt them.
  if (began) take_status(attempt, *found.status);
  take_exits(attempt, found.record.exits);
  take_exits(attempt, found.exits);
  switch (found.record.phase) {
    case Phase::kPreparing:
      attempt.stage = Stage::kSpawning;
      attempt.prepare_by = step.now.monotonic + kPrepareTimeout;
      break;
    case Phase::kLive:
      attempt.stage = Stage::kLive;
      attempt.was_live = true;
      break;
    case Phase::kEnded:
    case Phase::kRefused:
    case Phase::kForgotten:
      attempt.stage = Stage::kOver;
  }
  const bool ended = found.record.phase == Phase::kEnded;  // Written only after its ranks were gone.
  const bool refused_and_gone =
      found.record.phase == Phase::kRefused && found.shim == RecoveredAttempt::Shim::kGone && !attempt.started;
  attempt.shim = ended || refused_and_gone ? ShimState::kGone : ShimState::kLost;
  int& highest = step.state.highest[key.job_uid];
  highest = std::max(highest, key.number);
  step.out(WatchSpools{key, attempt.record.ranks});
  Attempt& kept = step.state.attempts[key] = std::move(attempt);
  if (kept.shim != ShimState::kLost) return;
  if (kept.stage == Stage::kOver) {
    kept.stopping = true;
    kept.kill_shim_at = step.now.monotonic + kShimTimeout;
    kept.pending.push_back({.kind = ShimCommand::Kind::kStop, .save = false, .reason = kept.record.error_reason});
  }
  look_for_shim(step, kept);
}

}  // namespace titan::node
