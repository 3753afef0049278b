#include "tests/worker/node/core/node_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "gtest/gtest.h"

namespace titan::node {
namespace {

constexpr int64_t kEventBytes = 100;
constexpr int kMaxSteps = 20'000;  // More steps mean that the core loops.
constexpr int kSigkill = 9;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

AttemptKey key_of(int attempt) { return {"u1", attempt}; }

void identify(int attempt, v1::AttemptId* id) {
  id->set_job_uid("u1");
  id->set_number(attempt);
}

// Returns whether the effect belongs to the state folder, whose effects keep their order.
bool is_ordered(const Effect& effect) {
  return std::holds_alternative<RaiseFence>(effect) || std::holds_alternative<AddRecord>(effect) ||
         std::holds_alternative<WriteRecord>(effect) || std::holds_alternative<WritePlaces>(effect) ||
         std::holds_alternative<ForgetAttempt>(effect) || std::holds_alternative<DeleteFolder>(effect) ||
         std::holds_alternative<WriteCluster>(effect) || std::holds_alternative<WriteLeaderEpoch>(effect);
}

}  // namespace

NodeConfig NodeWorld::default_config() {
  NodeConfig config;
  config.node = "n1";
  config.resources.set_device("cpu");
  config.resources.set_devices(4);
  return config;
}

NodeWorld::NodeWorld(NodeConfig config) : config_(std::move(config)) { make_core(0); }

void NodeWorld::make_core(int64_t start_session) {
  session_ = start_session;
  open_ = false;
  exited_ = false;
  core_ = std::make_unique<NodeCore>(config_, disk.cluster, disk.epoch, now_);
  for (const auto& [key, record] : disk.records) {
    if (record.phase == AttemptRecord::Phase::kForgotten) continue;
    RecoveredAttempt found;
    found.record = record;
    found.places = disk.places[key];
    found.facts.job = "name";
    const auto shim = shims.find(key);
    found.shim =
        shim != shims.end() && shim->second.alive ? RecoveredAttempt::Shim::kAlive : RecoveredAttempt::Shim::kGone;
    if (!unreadable.empty()) found.shim = RecoveredAttempt::Shim::kUnknown;
    if (unreadable.empty() && shim != shims.end()) {
      found.status = shim->second.written;
      for (const Rank& rank : shim->second.ranks) {
        if (rank.exit) found.exits.push_back(*rank.exit);
      }
    }
    feed(found);
  }
}

void NodeWorld::restart() {
  waiting_.clear();
  for (auto& [key, shim] : shims) shim.link = 0;
  make_core(session_);
}

void NodeWorld::feed(const Input& input) {
  if (dying_) return;
  for (Effect& effect : core_->step(input, now_)) {
    ++requested_[effect.index()];
    if (is_immediate(effect)) {
      apply(std::move(effect));
    } else {
      waiting_.emplace_back(std::move(effect));
    }
  }
}

bool NodeWorld::run_one(const std::function<bool(const Waiting&)>& wanted) {
  bool order_blocked = false;
  std::set<Op> link_blocked;
  bool session_blocked = false;
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    bool blocked = wanted && !wanted(*at);
    if (const Effect* const effect = std::get_if<Effect>(&*at)) {
      blocked = blocked || hung_.count(effect->index()) > 0 || (is_ordered(*effect) && order_blocked);
      order_blocked = order_blocked || (blocked && is_ordered(*effect));
      if (blocked) continue;
      const Effect taken = std::move(std::get<Effect>(*at));
      waiting_.erase(at);
      perform(taken);
      return true;
    }
    const Input& input = std::get<Input>(*at);
    Op link = 0;
    if (const auto* event = std::get_if<ShimEvent>(&input)) link = event->link;
    if (const auto* closed = std::get_if<ShimClosed>(&input)) link = closed->link;
    const bool of_session = std::holds_alternative<Command>(input);
    blocked = blocked || (link != 0 && link_blocked.count(link) > 0) || (of_session && session_blocked);
    if (blocked && link != 0) link_blocked.insert(link);
    session_blocked = session_blocked || (blocked && of_session);
    if (blocked) continue;
    const Input taken = std::move(std::get<Input>(*at));
    waiting_.erase(at);
    feed(taken);
    return true;
  }
  return false;
}

void NodeWorld::run_one_and_crash(const std::function<bool(const Waiting&)>& wanted) {
  dying_ = true;
  (void)run_one(wanted);
  dying_ = false;
  restart();
}

void NodeWorld::settle() {
  for (int steps = 0; run_one(); ++steps) ASSERT_LT(steps, kMaxSteps) << "the core loops forever";
}

void NodeWorld::advance(absl::Duration by) {
  const absl::Duration end = now_.monotonic + by;
  settle();
  for (int steps = 0;; ++steps) {
    ASSERT_LT(steps, kMaxSteps) << "the core keeps setting new deadlines";
    absl::Duration next = core_->next_deadline();
    for (const auto& [key, shim] : shims) {
      if (shim.alive && !shim.hangs) next = std::min(next, shim.kill_at);
    }
    if (next > end) break;
    move_clock(std::max(absl::ZeroDuration(), next - now_.monotonic));
    run_shim_deadlines();
    tick();
    settle();
  }
  move_clock(end - now_.monotonic);
}

bool NodeWorld::is_immediate(const Effect& effect) const {
  return std::visit(
      [](const auto& given) {
        using Given = std::decay_t<decltype(given)>;
        return std::is_same_v<Given, Send> || std::is_same_v<Given, KillShim> || std::is_same_v<Given, SendToShim> ||
               std::is_same_v<Given, WatchSpools> || std::is_same_v<Given, UnwatchSpools> ||
               std::is_same_v<Given, AnswerLog> || std::is_same_v<Given, AnswerTrace> ||
               std::is_same_v<Given, AnswerDiagnosis> || std::is_same_v<Given, ResetSession> ||
               std::is_same_v<Given, Log> || std::is_same_v<Given, Exit>;
      },
      effect);
}

void NodeWorld::apply(Effect effect) {
  std::visit(Overloaded{
                 [this](Send& it) {
                   if (open_ && it.session == session_) receive(it.message);
                 },
                 [this](KillShim& it) {
                   const auto found = shims.find(it.key);
                   if (found != shims.end() && found->second.pid == it.pid) kill_shim(it.key.number);
                 },
                 [this](SendToShim& it) {
                   const auto found = shims.find(it.key);
                   if (found == shims.end() || !found->second.alive || found->second.link != it.link) return;
                   if (found->second.hangs) return found->second.unprocessed.push_back(it.command);
                   shim_does(it.key, it.command);
                 },
                 [this](AnswerLog& it) { logs.push_back(it); },
                 [this](AnswerTrace& it) { traces.push_back(it); },
                 [this](AnswerDiagnosis& it) { diagnoses.push_back(it); },
                 [this](ResetSession& it) {
                   resets.push_back(it.why);
                   if (open_ && it.session == session_) {
                     open_ = false;
                     waiting_.emplace_back(Input(Disconnected{session_, ""}));
                   }
                 },
                 [this](Log& it) { log.push_back(journal::format(it.line)); },
                 [this](Exit&) { exited_ = true; },
                 [](auto&) {},
             },
             effect);
}

std::string NodeWorld::error_of(size_t index) const {
  const auto found = failing_.find(index);
  return found == failing_.end() ? "" : found->second;
}

void NodeWorld::perform(const Effect& effect) {
  const std::string error = error_of(effect.index());
  std::visit(Overloaded{
                 [&](const RaiseFence& it) {
                   if (!error.empty()) return feed(FenceRaised{it.op, 0, error});
                   int& fence = disk.fences[it.key.job_uid];
                   fence = std::max(fence, it.key.number);
                   feed(FenceRaised{it.op, fence, ""});
                 },
                 [&](const AddRecord& it) {
                   if (error.empty()) {
                     disk.records[it.record.key] = it.record;
                     disk.places.erase(it.record.key);
                     const auto old = shims.find(it.record.key);
                     EXPECT_TRUE(old == shims.end() || !old->second.alive)
                         << "its run folder is recreated under a shim";
                     if (old != shims.end()) shims.erase(old);
                   }
                   feed(Written{it.op, error});
                 },
                 [&](const WriteRecord& it) {
                   if (error.empty()) disk.records[it.record.key] = it.record;
                   feed(Written{it.op, error});
                 },
                 [&](const PrepareFolder& it) {
                   FolderPrepared done;
                   done.op = it.op;
                   if (!prepare_refusal.empty()) done.refusal = {prepare_refusal, "injected by the test"};
                   if (done.refusal) return feed(done);
                   if (it.record.leader) {
                     disk.tokens.insert(it.record.key);
                     done.folder_id = "folder";
                   }
                   done.facts.job = "name";
                   feed(done);
                 },
                 [&](const DiscardPrepared& it) { disk.tokens.erase(it.record.key); },
                 [&](const CheckToken& it) {
                   feed(TokenChecked{
                       it.op, token_refusal.empty() ? Refusal{} : Refusal{token_refusal, "injected by the test"}});
                 },
                 [&](const SpawnShim& it) {
                   if (!error.empty()) return feed(ShimSpawned{it.op, 0, 0, error});
                   const AttemptRecord& record = disk.records.at(it.key);
                   EXPECT_EQ(record.phase == AttemptRecord::Phase::kPreparing ||
                                 record.phase == AttemptRecord::Phase::kRefused,
                             true);
                   SimShim shim;
                   shim.pid = ++last_pid_;
                   shim.link = it.op;
                   for (const int rank : record.ranks) shim.ranks.push_back({.rank = rank});
                   shim.hangs = new_shims_hang;
                   if (!shim.hangs) write_status(shim);
                   SimShim& kept = shims[it.key] = std::move(shim);
                   feed(ShimSpawned{it.op, kept.pid, kept.pid, ""});
                   if (!kept.hangs) emit(it.key, {.kind = ShimEvent::Kind::kStatus, .status = status_of(kept)});
                 },
                 [&](const FindShim& it) {
                   ShimLookup found;
                   found.op = it.op;
                   found.why = unreadable;
                   if (!unreadable.empty()) return feed(found);
                   const auto shim = shims.find(it.key);
                   if (shim != shims.end() && shim->second.alive) {
                     found.state = ShimLookup::State::kLinked;
                     shim->second.link = it.op;
                     feed(found);
                     if (!shim->second.hangs) {
                       emit(it.key, {.kind = ShimEvent::Kind::kStatus, .status = status_of(shim->second)});
                     }
                     return;
                   }
                   found.state = ShimLookup::State::kGone;
                   found.why = "no message";
                   if (shim != shims.end()) {
                     found.status = shim->second.written;
                     for (const Rank& rank : shim->second.ranks) {
                       if (rank.exit) found.exits.push_back(*rank.exit);
                     }
                   }
                   feed(found);
                 },
                 [&](const CheckRanks& it) {
                   RanksChecked seen;
                   seen.op = it.op;
                   seen.same_boot = !rebooted;
                   seen.unknown = unreadable;
                   const auto shim = shims.find(it.key);
                   if (shim == shims.end()) return feed(seen);
                   for (const Rank& rank : shim->second.ranks) {
                     if (rank.running)
                       seen.alive.push_back({rank.rank, rank.pid, unkillable.count(rank.pid) > 0 ? 'D' : 'R'});
                     if (rank.exit) seen.exits.push_back(*rank.exit);
                   }
                   feed(seen);
                 },
                 [&](const ReadSpool& it) {
                   SpoolRead read;
                   read.op = it.op;
                   read.next_offset = it.offset;
                   read.error = error;
                   const auto shim = shims.find(it.key);
                   if (shim == shims.end() || !error.empty()) return feed(read);
                   if (const auto made = spools.find(it.rank); made != spools.end() && !made->second.empty()) {
                     read = made->second.front();
                     made->second.pop_front();
                     read.op = it.op;
                     return feed(read);
                   }
                   for (const Rank& rank : shim->second.ranks) {
                     if (rank.rank != it.rank) continue;
                     for (int64_t at = it.offset / kEventBytes; at < rank.events; ++at) {
                       if (read.next_offset - it.offset >= it.max_bytes) break;
                       read.next_offset = (at + 1) * kEventBytes;
                       read.lines.push_back({at + 1, absl::StrCat("{\"seq\":", at + 1, "}"), read.next_offset});
                     }
                   }
                   feed(read);
                 },
                 [&](const ReadLogTail& it) {
                   const std::string text =
                       printed.count(it.rank) > 0 ? printed[it.rank] : absl::StrCat("rank ", it.rank, "\n");
                   feed(LogTailRead{it.op, error.empty() ? text : "", 0});
                 },
                 [&](const WritePlaces& it) {
                   if (error.empty()) disk.places[it.key] = it.places;
                   feed(Written{it.op, error});
                 },
                 [&](const ForgetAttempt& it) {
                   if (error.empty()) disk.records[it.record.key] = it.record;
                   feed(Written{it.op, error});
                 },
                 [&](const DeleteFolder& it) { disk.records.erase(it.key); },
                 [&](const CleanUp& it) {
                   feed(Written{it.op, ""});
                 },
                 [&](const WriteCluster& it) {
                   if (error.empty()) disk.cluster = it.cluster;
                   feed(Written{it.op, error});
                 },
                 [&](const WriteLeaderEpoch& it) {
                   if (error.empty()) disk.epoch = it.epoch;
                   feed(Written{it.op, error});
                 },
                 [](const auto&) { ADD_FAILURE() << "this effect has no completion"; },
             },
             effect);
}

void NodeWorld::connect(const std::string& cluster, int64_t epoch_of_leader) {
  if (open_) disconnect();
  ++session_;
  open_ = true;
  epoch = epoch_of_leader;
  registered_ = core_->make_register(now_);
  v1::ControllerMessage message;
  message.mutable_welcome()->set_lease_epoch(session_);
  message.mutable_welcome()->set_lease_milliseconds(5000);
  message.mutable_welcome()->set_cluster(cluster);
  message.set_leader_epoch(epoch_of_leader);
  waiting_.emplace_back(Input(Command{session_, message}));
  settle();
}

void NodeWorld::disconnect(const std::string& reason) {
  open_ = false;
  std::erase_if(waiting_, [](const Waiting& item) {
    const Input* const input = std::get_if<Input>(&item);
    return input != nullptr && std::holds_alternative<Command>(*input);
  });
  feed(Disconnected{session_, reason});
}

void NodeWorld::command(v1::ControllerMessage message) {
  if (!open_) return;
  message.set_leader_epoch(epoch);
  waiting_.emplace_back(Input(Command{session_, std::move(message)}));
}

void NodeWorld::receive(const v1::WorkerMessage& message) {
  messages_.push_back(message);
  if (message.has_attempt()) {
    const v1::AttemptReport& report = message.attempt();
    if (report.phase() == v1::AttemptReport::ENDED && report.error_reason() != "NOT_PREPARED") {
      EXPECT_EQ(running_ranks(report.id().number()), 0) << "ENDED is reported while ranks run";
    }
    if (report.phase() == v1::AttemptReport::PREPARED || report.phase() == v1::AttemptReport::STARTED) {
      EXPECT_EQ(disk.records.count({report.id().job_uid(), report.id().number()}), 1u)
          << "reported before it is on the disk";
    }
    reports_.push_back(report);
  }
  if (message.has_events()) {
    const v1::RankEvents& events = message.events();
    int64_t& known = events_[{events.id().number(), events.rank()}];
    for (const v1::SpoolDamage& part : events.damage()) damage.push_back(part.message());
    for (const v1::RankEvent& event : events.events()) {
      if (event.sequence() > known + 1) ++gaps_;
      if (event.sequence() == known + 1) ++known;
    }
    if (!acknowledge) return;
    v1::ControllerMessage ack;
    *ack.mutable_events_ack()->mutable_id() = events.id();
    ack.mutable_events_ack()->set_rank(events.rank());
    ack.mutable_events_ack()->set_sequence(known);
    command(ack);
  }
  if (message.has_beat()) {
    ++beats_;
    last_beat_ = message.beat();
    v1::ControllerMessage ack;
    ack.mutable_beat_ack()->set_sequence(message.beat().sequence());
    if (answer_beats) command(ack);
  }
}

v1::AttemptReport NodeWorld::last(int attempt) const {
  for (auto report = reports_.rbegin(); report != reports_.rend(); ++report) {
    if (report->id().job_uid() == "u1" && report->id().number() == attempt) return *report;
  }
  return {};
}

int64_t NodeWorld::events_of(int attempt, int rank) const {
  const auto found = events_.find({attempt, rank});
  return found == events_.end() ? 0 : found->second;
}

v1::ControllerMessage NodeWorld::make_prepare(int attempt, int ranks, bool leader) {
  v1::ControllerMessage message;
  v1::Prepare& prepare = *message.mutable_prepare();
  identify(attempt, prepare.mutable_id());
  prepare.set_leader(leader);
  for (int rank = 0; rank < ranks; ++rank) prepare.add_ranks(rank);
  prepare.set_dump_folder("/dump");
  prepare.set_token("token");
  prepare.set_orphan_timeout_seconds(600);
  prepare.set_launch_json("{}");
  return message;
}

void NodeWorld::prepare(int attempt, int ranks, bool leader, int64_t deadline_milliseconds) {
  v1::ControllerMessage message = make_prepare(attempt, ranks, leader);
  message.mutable_prepare()->set_deadline_milliseconds(deadline_milliseconds);
  command(message);
}

void NodeWorld::start(int attempt) {
  v1::ControllerMessage message;
  identify(attempt, message.mutable_start()->mutable_id());
  message.mutable_start()->set_store_host("host");
  message.mutable_start()->set_store_port(7);
  command(message);
}

void NodeWorld::stop(int attempt, bool save, int64_t grace_milliseconds, int64_t deadline_milliseconds,
                     const std::vector<int>& named) {
  v1::ControllerMessage message;
  v1::Stop& stop = *message.mutable_stop();
  identify(attempt, stop.mutable_id());
  stop.set_save(save);
  stop.set_grace_milliseconds(grace_milliseconds);
  stop.set_reason("TEST");
  stop.set_deadline_milliseconds(deadline_milliseconds);
  stop.mutable_named_ranks()->Assign(named.begin(), named.end());
  command(message);
}

void NodeWorld::checkpoint(int attempt) {
  v1::ControllerMessage message;
  identify(attempt, message.mutable_checkpoint()->mutable_id());
  command(message);
}

void NodeWorld::forget(int attempt) {
  v1::ControllerMessage message;
  identify(attempt, message.mutable_forget()->mutable_id());
  command(message);
}

void NodeWorld::read_log(int attempt, int rank) {
  v1::ControllerMessage message;
  identify(attempt, message.mutable_read_log()->mutable_id());
  message.mutable_read_log()->set_rank(rank);
  command(message);
}

void NodeWorld::launch(int attempt, int ranks) {
  prepare(attempt, ranks);
  settle();
  start(attempt);
  settle();
}

// ---- Shims and ranks ----

ShimStatus NodeWorld::status_of(const SimShim& shim) const {
  ShimStatus status;
  status.pid = status.start_ticks = shim.pid;
  status.boot = "boot";
  status.ended = shim.ended;
  status.store_port = 7;
  for (const Rank& rank : shim.ranks) {
    status.ranks.push_back({rank.rank, rank.pid, rank.pid, rank.running, rank.exit});
  }
  return status;
}

void NodeWorld::write_status(SimShim& shim) { shim.written = status_of(shim); }

void NodeWorld::emit(const AttemptKey& key, ShimEvent event) {
  const SimShim& shim = shims.at(key);
  if (shim.link == 0) return;
  event.key = key;
  event.link = shim.link;
  waiting_.emplace_back(Input(std::move(event)));
}

void NodeWorld::shim_does(const AttemptKey& key, const ShimCommand& command) {
  SimShim& shim = shims.at(key);
  if (command.kind == ShimCommand::Kind::kLease) return emit(key, {.kind = ShimEvent::Kind::kLease});
  shim.got.push_back(command);
  if (command.kind == ShimCommand::Kind::kStart) {
    if (!shim.stop_reason.empty()) {
      return emit(key, {.kind = ShimEvent::Kind::kStartFailed, .error = "the attempt was stopped"});
    }
    if (!error_of(index<SendToShim>()).empty()) {
      emit(key, {.kind = ShimEvent::Kind::kStartFailed, .error = error_of(index<SendToShim>())});
      shim.stop_reason = "LAUNCH_FAILED";
      return end_shim_if_over(key);
    }
    for (Rank& rank : shim.ranks) {
      if (shim.started) break;
      rank.pid = ++last_pid_;
      rank.running = true;
    }
    shim.started = true;
    write_status(shim);
    return emit(key, {.kind = ShimEvent::Kind::kStarted, .status = status_of(shim)});
  }
  if (command.kind == ShimCommand::Kind::kStacks) return emit(key, {.kind = ShimEvent::Kind::kStacks});
  if (command.kind != ShimCommand::Kind::kStop) return;
  if (shim.stop_reason.empty()) shim.stop_reason = command.reason.empty() ? "STOPPED" : command.reason;
  if (command.grace_milliseconds <= 0) {
    kill_ranks(key);
  } else {
    shim.kill_at = std::min(shim.kill_at, now_.monotonic + absl::Milliseconds(command.grace_milliseconds));
  }
  end_shim_if_over(key);
}

void NodeWorld::kill_ranks(const AttemptKey& key) {
  for (Rank& rank : shims.at(key).ranks) {
    rank.killed = rank.running;
    if (rank.running && unkillable.count(rank.pid) == 0) exit_rank(key, rank, 0, kSigkill);
  }
}

void NodeWorld::exit_rank(const AttemptKey& key, Rank& rank, int code, int signal) {
  rank.running = false;
  rank_protocol::RankExit& exit = rank.exit.emplace();
  exit.rank = rank.rank;
  exit.exit_code = code;
  exit.signal = signal;
  exit.out_of_memory = code == rank_protocol::kExitOutOfMemory;
  exit.stop_reason = shims.at(key).stop_reason;
  emit(key, {.kind = ShimEvent::Kind::kExit, .exit = exit});
}

void NodeWorld::end_shim_if_over(const AttemptKey& key) {
  SimShim& shim = shims.at(key);
  const bool any = std::any_of(shim.ranks.begin(), shim.ranks.end(), [](const Rank& rank) { return rank.running; });
  if (!shim.alive || shim.ended || any || (!shim.started && shim.stop_reason.empty())) return;
  shim.ended = true;
  write_status(shim);
  emit(key, {.kind = ShimEvent::Kind::kEnded, .status = status_of(shim)});
  if (shim.link != 0) waiting_.emplace_back(Input(ShimClosed{key, shim.link}));
  shim.alive = false;
}

void NodeWorld::run_shim_deadlines() {
  for (auto& [key, shim] : shims) {
    if (!shim.alive || shim.hangs || shim.kill_at > now_.monotonic) continue;
    shim.kill_at = kNever;
    kill_ranks(key);
    end_shim_if_over(key);
  }
}

void NodeWorld::rank_exits(int attempt, int rank, int code, int signal) {
  SimShim& shim = shims.at(key_of(attempt));
  for (Rank& it : shim.ranks) {
    if (it.rank == rank && it.running) exit_rank(key_of(attempt), it, code, signal);
  }
  end_shim_if_over(key_of(attempt));
}

void NodeWorld::rank_emits(int attempt, int rank, int events) {
  for (Rank& it : shims.at(key_of(attempt)).ranks) {
    if (it.rank == rank) it.events += events;
  }
  waiting_.emplace_back(Input(SpoolChanged{key_of(attempt), rank}));
}

// The kernel kills the shim's ranks with it, and their exits are not recorded.
void NodeWorld::kill_shim(int attempt) {
  SimShim& shim = shims.at(key_of(attempt));
  if (!shim.alive) return;
  shim.alive = false;
  for (Rank& rank : shim.ranks) {
    rank.killed = rank.running;
    rank.running = rank.running && unkillable.count(rank.pid) > 0;
  }
  if (shim.link != 0) waiting_.emplace_back(Input(ShimClosed{key_of(attempt), shim.link}));
}

void NodeWorld::break_link(int attempt) {
  SimShim& it = shim(attempt);
  waiting_.emplace_back(Input(ShimClosed{key_of(attempt), std::exchange(it.link, 0)}));
}

void NodeWorld::clear_all_faults() {
  hung_.clear();
  failing_.clear();
  unreadable.clear();
  prepare_refusal.clear();
  token_refusal.clear();
  new_shims_hang = false;
  acknowledge = answer_beats = true;
  for (auto& [key, shim] : shims) {
    if (shim.alive && shim.hangs) wake_shim(key.number);
  }
  end_unkillable();
}

void NodeWorld::hang_shim(int attempt) { shim(attempt).hangs = true; }

void NodeWorld::wake_shim(int attempt) {
  SimShim& it = shim(attempt);
  it.hangs = false;
  emit(key_of(attempt), {.kind = ShimEvent::Kind::kStatus, .status = status_of(it)});
  for (const ShimCommand& command : std::exchange(it.unprocessed, {})) shim_does(key_of(attempt), command);
}

void NodeWorld::end_unkillable() {
  unkillable.clear();
  for (auto& [key, shim] : shims) {
    for (Rank& rank : shim.ranks) {
      if (!rank.running || !rank.killed) continue;
      if (shim.alive) {
        exit_rank(key, rank, 0, kSigkill);
      } else {
        rank.running = false;
      }
    }
    end_shim_if_over(key);
  }
}

int NodeWorld::running_ranks(int attempt) const {
  const auto found = shims.find(key_of(attempt));
  if (found == shims.end()) return 0;
  return static_cast<int>(std::count_if(found->second.ranks.begin(), found->second.ranks.end(),
                                        [](const Rank& rank) { return rank.running; }));
}

std::set<int> NodeWorld::devices_in_use() const {
  std::set<int> used;
  for (const auto& [key, shim] : shims) {
    if (running_ranks(key.number) == 0) continue;
    for (const int device : disk.records.at(key).devices) {
      EXPECT_TRUE(used.insert(device).second) << "device " << device << " is used by two attempts";
    }
  }
  return used;
}

}  // namespace titan::node
