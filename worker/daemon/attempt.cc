#include "worker/daemon/attempt.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/spool.h"
#include "common/status/status.h"
#include "worker/shim/files.h"
#include "worker/shim/process.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using Phase = AttemptRecord::Phase;

constexpr absl::Duration kLookAgain = absl::Milliseconds(10);
constexpr absl::Duration kLookAgainSlowly = absl::Seconds(1);
constexpr int kQuickLooks = 200;
constexpr absl::Duration kShimPatience = absl::Seconds(3);

// shim.json; an empty object when there is none, or a power failure left nothing in it. Errors: those of reading.
absl::StatusOr<json> shim_state(const std::string& run_folder) {
  const absl::StatusOr<std::string> text = shim::read_file(run_folder + "/shim.json");
  if (absl::IsNotFound(text.status())) return json::object();
  if (!text.ok()) return text.status();
  json state = json::parse(*text, nullptr, false);
  return state.is_object() ? state : json::object();
}

// The last line that the shim printed: why it could not start.
std::string shim_words(const std::string& run_folder) {
  const absl::StatusOr<std::string> text = shim::read_file(run_folder + "/shim.log");
  if (!text.ok()) return "no message";
  const size_t end = text->find_last_not_of('\n');
  if (end == std::string::npos) return "no message";
  const size_t before = text->rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return text->substr(begin, end + 1 - begin);
}

}  // namespace

absl::StatusOr<bool> shim_lives(const std::string& run_folder) {
  const absl::StatusOr<json> state = shim_state(run_folder);
  if (state.ok() && state->value("boot_id", "") == shim::boot_id() &&
      shim::alive(state->value("pid", 0), state->value("start_ticks", int64_t{0}))) {
    return true;
  }
  TITAN_ASSIGN_OR_RETURN(const bool held, shim_holds(run_folder));
  if (!held && !state.ok()) return state.status();
  return held;
}

Attempt::Attempt(AttemptHost& host, AttemptRecord record)
    : host_(host), record_(std::move(record)), run_folder_(host.state->run_folder(record_.key)) {
  const std::map<int, SpoolTail::Place> places = load_places();
  for (const int rank : record_.ranks) {
    const auto place = places.find(rank);
    ranks_.push_back({.rank = rank,
                      .tail = SpoolTail(rank_protocol::spool_path(run_folder_, rank),
                                        place == places.end() ? SpoolTail::Place{} : place->second)});
  }
}

Attempt::~Attempt() {
  for (const Rank& rank : ranks_) host_.watcher->remove(rank_protocol::spool_path(run_folder_, rank.rank));
}

void Attempt::note(const std::string& text) const {
  host_.log(absl::StrCat("job ", record_.key.job_uid, " attempt ", record_.key.number, ": ", text));
}

ShimLink::Callbacks Attempt::callbacks() {
  return {[this](const json& message) { on_message(message); }, [this] { on_link_closed(); }};
}

void Attempt::tell(json request) {
  if (link_ != nullptr) return link_->send(request);
  pending_.push_back(std::move(request));
}

void Attempt::prepare(const std::string& launch_json, const std::string& visible_devices) {
  shim::Spec spec;
  spec.job_uid = record_.key.job_uid;
  spec.attempt = record_.key.number;
  spec.leader = record_.leader;
  spec.ipv6 = host_.ipv6;
  spec.rank_binary = host_.rank_binary;
  spec.ranks = record_.ranks;
  spec.log_max_bytes = host_.log_max_bytes;
  if (record_.orphan_timeout_seconds > 0) spec.orphan_timeout_seconds = record_.orphan_timeout_seconds;
  host_.aside([weak = weak_from_this(), post = host_.loop->poster(), record = record_, folder = run_folder_,
               launch_json, spec, visible_devices] {
    const Prepared prepared = prepare_files(record, folder, launch_json, spec, visible_devices);
    post([weak, prepared] {
      const std::shared_ptr<Attempt> self = weak.lock();
      if (self == nullptr || self->over()) return;
      if (prepared.refusal) return self->refuse(prepared.refusal);
      self->record_.folder_id = prepared.folder_id;
      self->watch_spools();
      self->launch_shim();
    });
  });
}

void Attempt::watch_spools() {
  for (const Rank& rank : ranks_) {
    const bool watched = host_.watcher->add(rank_protocol::spool_path(run_folder_, rank.rank),
                                            [this, number = rank.rank] { forward_events(number); });
    if (!watched) note("no inotify watch left: events are forwarded once a second");
  }
}

void Attempt::launch_shim() {
  absl::StatusOr<std::unique_ptr<ShimLink>> link =
      ShimLink::launch(*host_.loop, host_.shim_binary, run_folder_, callbacks());
  if (!link.ok()) return refuse({"LAUNCH_FAILED", std::string(link.status().message())});
  link_ = *std::move(link);
}

void Attempt::start(const std::string& store_host, int store_port) {
  if (over() || started_) return report();
  if (starting_) return;
  starting_ = true;
  const json request = {{"command", "start"}, {"id", "start"}, {"store_host", store_host}, {"store_port", store_port}};
  host_.aside([weak = weak_from_this(), post = host_.loop->poster(), record = record_, folder = run_folder_, request,
               patience = host_.token_patience_seconds] {
    const Refusal refusal = check_token(record, folder, patience);
    post([weak, refusal, request] {
      const std::shared_ptr<Attempt> self = weak.lock();
      if (self == nullptr || self->over()) return;
      if (refusal) return self->refuse(refusal);
      self->tell(request);
    });
  });
}

void Attempt::stop(bool save, int64_t grace_milliseconds, const std::string& reason) {
  if (over()) return report();
  note(absl::StrCat("stop (", reason.empty() ? "no reason given" : reason, save ? ", saving first" : "", ")"));
  tell({{"command", "stop"}, {"save", save}, {"grace_milliseconds", grace_milliseconds}, {"reason", reason}});
  kill_shim_after(absl::Milliseconds(grace_milliseconds) + kShimPatience);
}

// A shim that hangs cannot end its ranks, but its own death does.
void Attempt::kill_shim_after(absl::Duration patience) {
  host_.loop->after(patience, [weak = weak_from_this()] {
    const std::shared_ptr<Attempt> self = weak.lock();
    if (self == nullptr || self->over()) return;
    const auto pid = static_cast<pid_t>(self->shim_pid_);
    if (!shim::alive(pid, self->shim_ticks_)) return;
    self->note("its shim did not stop its ranks in time: killing it");
    ::kill(pid, SIGKILL);
  });
}

void Attempt::checkpoint() {
  if (!over()) tell({{"command", "checkpoint"}});
}

void Attempt::renew_lease(int64_t silence_milliseconds) {
  if (link_ != nullptr && !over()) {
    link_->send({{"command", "lease"}, {"id", "lease"}, {"silence_milliseconds", silence_milliseconds}});
  }
}

void Attempt::refuse(const Refusal& why) {
  record_.error_reason = why.reason;
  record_.error_message = why.message;
  note(absl::StrCat("refused, ", why.reason, ": ", why.message));
  if (link_ != nullptr) link_->send({{"command", "stop"}, {"reason", why.reason}});
  finish(Phase::kRefused);
}

void Attempt::on_message(const json& message) {
  const std::string event = message.value("event", "");
  const std::string id = message.value("id", "");
  if (id == "lease")
    log_bytes_dropped_ = message.value("log_dropped_bytes", int64_t{0}) + message.value("log_lost_bytes", int64_t{0});
  if (over()) return;
  if (event == "ready" || id == "subscribe") {
    on_status(message);
    if (record_.phase == Phase::kPreparing) record_.phase = Phase::kLive;
    save_record();
    report();
    for (const json& request : std::exchange(pending_, {})) link_->send(request);
  } else if (event == "exit") {
    on_exit(message.value("exit", json::object()));
  } else if (event == "ended") {
    on_status(message);
    end_when_ranks_are_gone(/*shim_lost=*/false);
  } else if (id == "start") {
    on_start_answer(message);
  }
}

void Attempt::on_status(const json& status) {
  looks_ = 0;
  unknown_.clear();
  shim_pid_ = status.value("pid", int64_t{0});
  shim_ticks_ = status.value("start_ticks", int64_t{0});
  shim_boot_ = status.value("boot_id", shim_boot_);
  store_port_ = status.value("store_port", 0);
  for (const json& item : status.value("ranks", json::array())) {
    Rank* const rank = find(item.value("rank", -1));
    if (rank == nullptr) continue;
    rank->pid = item.value("pid", int64_t{0});
    rank->start_ticks = item.value("start_ticks", int64_t{0});
    rank->running = item.value("running", false);
    started_ = started_ || rank->pid > 0;
    if (rank->exit == nullptr && item.contains("exit")) {
      absl::StatusOr<shim::ExitRecord> record = shim::exit_from_json(item["exit"]);
      if (record.ok()) rank->exit = std::make_unique<shim::ExitRecord>(*std::move(record));
    }
  }
}

void Attempt::on_start_answer(const json& answer) {
  starting_ = false;
  if (!answer.value("ok", false)) return refuse({"LAUNCH_FAILED", answer.value("error", "the shim gave no reason")});
  on_status(answer);
  report();
}

void Attempt::on_exit(const json& exit) {
  absl::StatusOr<shim::ExitRecord> record = shim::exit_from_json(exit);
  Rank* const rank = record.ok() ? find(record->rank) : nullptr;
  if (rank == nullptr || rank->exit != nullptr) return;
  rank->running = false;
  rank->exit = std::make_unique<shim::ExitRecord>(*std::move(record));
  forward_events(rank->rank);  // What it said comes before how it ended.
  report(rank->exit.get());
}

void Attempt::on_link_closed() {
  link_.reset();
  if (!over()) look_for_shim();
}

void Attempt::adopt() {
  watch_spools();
  // The shim answers after the first session may be up: without its last word on disk the inventory would call ranks
  // that train only prepared, and a controller with an older store would not go on with them.
  const absl::StatusOr<json> state = shim_state(run_folder_);
  if (state.ok() && record_.phase == Phase::kLive) on_status(*state);
  if (!over()) look_for_shim();
}

// The link is down: the shim is there and takes a new one, is about to be there, or is gone; or the disk does not say.
void Attempt::look_for_shim() {
  if (over() || link_ != nullptr) return;
  const absl::StatusOr<bool> lives = shim_lives(run_folder_);
  if (lives.ok() && !*lives) return shim_is_gone();
  absl::StatusOr<std::unique_ptr<ShimLink>> link = ShimLink::connect(*host_.loop, run_folder_, callbacks());
  if (link.ok()) {
    link_ = *std::move(link);
    return;
  }
  look_for_shim_again(lives.status());
}

// What cannot be read is no proof of an end: its ranks may train on, and a second attempt must not run beside them.
void Attempt::look_for_shim_again(const absl::Status& unknown) {
  if (!unknown.ok() && std::exchange(unknown_, std::string(unknown.message())) != unknown.message()) {
    note(absl::StrCat("cannot tell whether its shim lives, looking again until it can be told: ", unknown_));
  }
  ++looks_;
  if (looks_ == kQuickLooks && unknown.ok()) note("its shim lives but does not answer");
  host_.loop->after(looks_ < kQuickLooks ? kLookAgain : kLookAgainSlowly, [weak = weak_from_this()] {
    if (const std::shared_ptr<Attempt> self = weak.lock()) self->look_for_shim();
  });
}

void Attempt::shim_is_gone() {
  const absl::StatusOr<json> state = shim_state(run_folder_);
  if (!state.ok()) return look_for_shim_again(state.status());
  if (record_.phase == Phase::kPreparing) {
    return refuse({"LAUNCH_FAILED", absl::StrCat("titan-shim did not start: ", shim_words(run_folder_))});
  }
  on_status(*state);
  // A full disk may have kept the last state out of shim.json, but not the exits, whose room is reserved.
  const absl::StatusOr<std::vector<shim::ExitRecord>> exits = shim::read_exits(run_folder_);
  const bool all_recorded = exits.ok() && exits->size() == ranks_.size();
  end_when_ranks_are_gone(/*shim_lost=*/state->value("state", "") != "ended" && !all_recorded);
}

// The kernel kills the ranks of a dead shim; what they left behind is found by its environment. Ended is said when all
// are gone.
void Attempt::end_when_ranks_are_gone(bool shim_lost) {
  if (over()) return;
  const bool same_boot = shim_boot_ == shim::boot_id();
  if (shim_lost && same_boot) shim::kill_marked(absl::StrCat(shim::kRunFolderVariable, "=", run_folder_));
  const bool some_left = same_boot && std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
                           return shim::alive(static_cast<pid_t>(rank.pid), rank.start_ticks);
                         });
  if (some_left) {
    host_.loop->after(kLookAgain, [weak = weak_from_this(), shim_lost] {
      if (const std::shared_ptr<Attempt> self = weak.lock()) self->end_when_ranks_are_gone(shim_lost);
    });
    return;
  }
  const absl::StatusOr<std::vector<shim::ExitRecord>> exits = shim::read_exits(run_folder_);
  if (!exits.ok()) note(std::string(exits.status().message()));
  std::string stop_reason;
  for (Rank& rank : ranks_) {
    rank.running = false;
    for (const shim::ExitRecord& exit : exits.ok() ? *exits : std::vector<shim::ExitRecord>()) {
      if (exit.rank == rank.rank && rank.exit == nullptr) rank.exit = std::make_unique<shim::ExitRecord>(exit);
    }
    if (rank.exit != nullptr) stop_reason = rank.exit->stop_reason;
    if (rank.exit != nullptr || !started_) continue;
    rank.exit = std::make_unique<shim::ExitRecord>();
    rank.exit->rank = rank.rank;
    rank.exit->signal = SIGKILL;
    rank.exit->last_words = shim::last_error(run_folder_, rank.rank);
    rank.exit->time_unix_nanos = shim::unix_nanos();
  }
  if (shim_lost) {
    record_.error_reason = "SHIM_LOST";
    record_.error_message = same_boot ? "titan-shim, the parent of the ranks, ended unexpectedly, and its ranks with it"
                                      : "the node was restarted";
  } else if (stop_reason == "ORPHANED") {
    record_.error_reason = "ORPHANED";
    record_.error_message = absl::StrCat("no controller was heard of for ", record_.orphan_timeout_seconds, " s");
  }
  finish(Phase::kEnded);
}

void Attempt::finish(AttemptRecord::Phase phase) {
  record_.phase = phase;
  starting_ = false;
  save_record();
  forward_events();
  report();
  if (host_.on_over) host_.on_over(record_.key);
}

void Attempt::save_record() {
  const absl::Status saved = host_.state->save(record_);
  if (!saved.ok()) note(std::string(saved.message()));
}

}  // namespace titan::daemon
