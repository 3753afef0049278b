// How the daemon does what the core wants done.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/spool.h"
#include "common/service/failpoint/failpoint.h"
#include "worker/node/daemon/daemon.h"
#include "worker/node/daemon/prepare_files.h"
#include "worker/node/daemon/rank_answers.h"
#include "worker/node/daemon/rank_environment.h"
#include "worker/node/daemon/rank_user.h"
#include "worker/node/daemon/run_folder.h"
#include "worker/node/shim/log_file.h"
#include "worker/node/shim/process.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using node::Written;

constexpr int64_t kMaxLogBytes = 1 << 20;

// Where a daemon may be made to end, for tests: before and after what it leaves behind. See common/service/failpoint.
struct Around {
  failpoint::Point before, after;
};
Around fence_points{failpoint::Point("worker.fence"), failpoint::Point("worker.fence.raised")},
    add_points{failpoint::Point("worker.add"), failpoint::Point("worker.added")},
    record_points{failpoint::Point("worker.record"), failpoint::Point("worker.recorded")},
    prepare_points{failpoint::Point("worker.prepare"), failpoint::Point("worker.prepared")},
    spawn_points{failpoint::Point("worker.spawn"), failpoint::Point("worker.spawned")},
    spool_points{failpoint::Point("worker.spool"), failpoint::Point("worker.spool.read")},
    tail_points{failpoint::Point("worker.log_tail"), failpoint::Point("worker.log_tail.read")},
    places_points{failpoint::Point("worker.places"), failpoint::Point("worker.placed")},
    forget_points{failpoint::Point("worker.forget"), failpoint::Point("worker.forgotten")},
    cluster_points{failpoint::Point("worker.cluster"), failpoint::Point("worker.cluster.joined")};
failpoint::Point send_point("worker.send"), token_point("worker.token.checked"), tell_point("worker.tell"),
    found_point("worker.shim.found"), removed_point("worker.folder.removed"), stripped_point("worker.forget.saved");

// The work between both points.
template <typename Work>
auto between(Around& points, Work work) {
  points.before.pass();
  auto done = work();
  points.after.pass();
  return done;
}

// Of a rank that will print no more and has no log. What a rank leaves stays in its folder as long as that does.
std::string why_no_log(const std::string& run_folder) {
  std::error_code error;
  if (std::filesystem::is_directory(run_folder, error)) return "it never began on this node";
  return "this node has nothing of it: it never began here, or its log was deleted for its age or size";
}

v1::LogData read_log(const node::AnswerLog& question, const std::string& run_folder, const StateFolder& state) {
  const v1::ReadLog& request = question.request;
  v1::LogData data;
  data.set_request(request.request());
  absl::StatusOr<shim::LogChunk> chunk = absl::NotFoundError("no such job");
  if (!run_folder.empty()) {
    const int64_t bytes = request.max_bytes() > 0 ? std::min(request.max_bytes(), kMaxLogBytes) : kMaxLogBytes;
    chunk = shim::read_log(rank_protocol::log_path(run_folder, request.rank()), request.offset(), request.tail_lines(),
                           bytes);
  }
  if (chunk.ok()) {
    data.set_offset(chunk->offset);
    data.set_data(std::move(chunk->data));
    data.set_dropped_bytes(chunk->dropped_bytes);
    data.set_end(chunk->end);
    data.set_closed(question.closed && chunk->end);
  } else {
    data.set_end(true);
    data.set_closed(question.closed);
    const absl::Status same = state.check_same();
    if (!absl::IsNotFound(chunk.status())) {
      data.set_error(text_of(chunk.status()));
    } else if (!same.ok()) {
      data.set_unreachable(true);
      data.set_error(absl::StrCat("this log cannot be reached now: ", text_of(same)));
    } else if (!question.closed && !run_folder.empty() && ::access(run_folder.c_str(), F_OK) != 0) {
      data.set_error(absl::StrCat("the run folder ", run_folder, " was deleted or moved away: this log is lost"));
    } else if (question.closed) {
      data.set_error(why_no_log(run_folder));
    }
  }
  return data;
}

json to_json(const node::ShimCommand& command) {
  switch (command.kind) {
    case node::ShimCommand::Kind::kStart:
      return {{"command", "start"},
              {"id", "start"},
              {"store_host", command.store_host},
              {"store_port", command.store_port}};
    case node::ShimCommand::Kind::kStop:
      return {{"command", "stop"},
              {"save", command.save},
              {"grace_milliseconds", command.grace_milliseconds},
              {"reason", command.reason}};
    case node::ShimCommand::Kind::kCheckpoint:
      return {{"command", "checkpoint"}};
    case node::ShimCommand::Kind::kLease:
      return {{"command", "lease"}, {"id", "lease"}, {"silence_milliseconds", command.silence_milliseconds}};
    case node::ShimCommand::Kind::kStacks:
      return {{"command", "stacks"}, {"id", "stacks"}, {"patience_milliseconds", command.patience_milliseconds}};
  }
  return json::object();
}

// Events as they may be sent, and in words what was none.
void take_batch(const rank_protocol::SpoolBatch& batch, node::SpoolRead& done) {
  done.next_offset = batch.next_offset;
  done.was_cut = batch.was_cut;
  for (const rank_protocol::SpoolDamage& part : batch.damage) {
    done.damage.push_back({part.offset, absl::StrCat(part.bytes, " bytes at byte ", part.offset,
                                                     " of its event file are not events and were skipped")});
  }
  for (const rank_protocol::SpoolLine& line : batch.lines) {
    std::string text = text::valid_utf8(line.json);
    if (json::accept(text)) {
      done.lines.push_back({line.sequence, std::move(text), line.end_offset});
    } else {
      done.damage.push_back({line.end_offset - 1, absl::StrCat("event ", line.sequence, ", which ends before byte ",
                                                               line.end_offset, " of its event file, is not JSON")});
    }
  }
}

}  // namespace

shim::Spec Daemon::make_spec(const AttemptRecord& record) const {
  shim::Spec spec;
  spec.job_uid = record.key.job_uid;
  spec.attempt = record.key.number;
  spec.leader = record.leader;
  spec.address = options_.store_address.empty() ? options_.address : options_.store_address;
  spec.rank_binary = options_.rank_binary;
  spec.ranks = record.ranks;
  spec.log_max_bytes = options_.log_max_bytes;
  if (record.orphan_timeout_seconds > 0) spec.orphan_timeout_seconds = record.orphan_timeout_seconds;
  if (groups_) {
    spec.group = {absl::StrCat(groups_->folder, "/", group_prefix(*state_), record.key.job_uid, "-", record.key.number),
                  groups_->unified, options_.memory_per_rank_bytes * static_cast<int64_t>(record.ranks.size())};
  }
  return spec;
}

void Daemon::log_about(const AttemptKey& key, journal::Level level, const std::string& event,
                       const std::string& message) {
  journal::Line line{level, event, {}};
  line.add("job_uid", key.job_uid).add("attempt", absl::StrCat(key.number)).add("message", message);
  says_.journal.write(line);
}

template <typename Work>
void Daemon::run_in(Lane& lane, Work work) {
  lane.run([this, post = loop_.poster(), work = std::move(work)] {
    post([this, done = node::Input(work())] { feed(done); });
  });
}

// Shared storage that hangs for one job must not hold up another.
template <typename Work>
void Daemon::run_aside(Work work) {
  std::thread([this, post = loop_.poster(), work = std::move(work)] {
    post([this, done = node::Input(work())] { feed(done); });
  }).detach();
}

void Daemon::perform(node::Effect effect) {
  std::visit([this](auto& given) { perform(given); }, effect);
}

void Daemon::perform(node::Send& effect) {
  send_point.pass();
  if (session_ != nullptr) session_->send(effect.session, std::move(effect.message));
}

void Daemon::perform(node::RaiseFence& effect) {
  run_in(records_, [state = state_, effect] {
    std::string damage;
    const absl::StatusOr<int> highest = between(fence_points, [&] { return state->raise_fence(effect.key, &damage); });
    if (highest.ok()) return node::FenceRaised{effect.op, *highest, "", damage};
    return node::FenceRaised{effect.op, 0, text_of(highest.status()), "", absl::IsDataLoss(highest.status())};
  });
}

void Daemon::perform(node::AddRecord& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(between(add_points, [&] { return state->add(effect.record); }))};
  });
}

void Daemon::perform(node::WriteRecord& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(between(record_points, [&] { return state->save(effect.record); }))};
  });
}

void Daemon::perform(node::PrepareFolder& effect) {
  const std::string visible = resources_.visible_to_ranks(effect.record.devices);
  run_aside([effect, visible, state = state_, spec = make_spec(effect.record), everybody = options_.rank_user,
             grants = options_.grants, host = options_.address] {
    const Prepared prepared = between(prepare_points, [&] {
      return prepare_as(*state, effect.record, effect.launch_json, spec, visible, everybody, grants, host);
    });
    return node::FolderPrepared{effect.op, prepared.refusal, prepared.folder_id, prepared.facts};
  });
}

void Daemon::perform(node::DiscardPrepared& effect) {
  std::thread([state = state_, effect, everybody = options_.rank_user] {
    if (effect.strip) state->strip(effect.record.key);
    const RanksAs as = ranks_as(effect.record, everybody, ::geteuid());
    if (!as.refusal) discard_token(effect.record, as.user);
  }).detach();
}

void Daemon::perform(node::CheckToken& effect) {
  run_aside([effect, folder = run_folder(effect.record.key), patience = options_.token_patience_seconds,
             everybody = options_.rank_user] {
    token_point.pass();
    const RanksAs as = ranks_as(effect.record, everybody, ::geteuid());
    if (as.refusal) return node::TokenChecked{effect.op, as.refusal};
    return node::TokenChecked{effect.op, check_token(effect.record, folder, patience, as.user)};
  });
}

void Daemon::perform(node::SpawnShim& effect) {
  shims_.run([this, post = loop_.poster(), effect, binary = options_.shim_binary, folder = run_folder(effect.key),
              environment = rank_environment(environ, options_.pass_env)] {
    absl::StatusOr<SpawnedShim> spawned =
        between(spawn_points, [&] { return spawn_shim(binary, folder, environment); });
    node::ShimSpawned done{effect.op, 0, 0, ""};
    const auto socket = std::make_shared<host::Descriptor>();
    if (spawned.ok()) {
      done.pid = spawned->pid;
      done.start_ticks = shim::start_ticks(spawned->pid);
      *socket = std::move(spawned->socket);
    } else {
      done.error = text_of(spawned.status());
    }
    post([this, done, socket, key = effect.key] {
      if (*socket) add_link(key, done.op, std::move(*socket), /*subscribe=*/false);
      feed(done);
    });
  });
}

void Daemon::perform(node::FindShim& effect) {
  shims_.run([this, post = loop_.poster(), effect, folder = run_folder(effect.key)] {
    node::ShimFound found = find_shim(folder);
    found_point.pass();
    found.op = effect.op;
    const auto socket = std::make_shared<host::Descriptor>();
    if (found.is == node::ShimFound::Is::kSilent || found.is == node::ShimFound::Is::kUnknown) {
      absl::StatusOr<host::Descriptor> connected = connect_to_shim(folder);
      if (connected.ok()) {
        found.is = node::ShimFound::Is::kLinked;
        *socket = *std::move(connected);
      }
    }
    post([this, found, socket, key = effect.key] {
      if (*socket) add_link(key, found.op, std::move(*socket), /*subscribe=*/true);
      feed(found);
    });
  });
}

void Daemon::perform(node::CheckRanks& effect) {
  run_in(checks_, [state = state_, effect] {
    return check_ranks(effect, state->run_folder(effect.key), state->rank_folder(effect.key));
  });
}

void Daemon::perform(node::KillShim& effect) {
  const auto pid = static_cast<pid_t>(effect.pid);
  if (shim::process_state(pid, effect.start_ticks).value_or(0) != 0) ::kill(pid, SIGKILL);
}

void Daemon::perform(node::TellShim& effect) {
  tell_point.pass();
  const auto found = links_.find(effect.key);
  if (found != links_.end() && found->second.number == effect.link) found->second.link->send(to_json(effect.command));
}

void Daemon::perform(node::ReadSpool& effect) {
  run_in(spools_, [state = state_, effect] {
    const std::string path = rank_protocol::spool_path(state->rank_folder(effect.key), effect.rank);
    node::SpoolRead done{effect.op, {}, effect.offset, ""};
    absl::StatusOr<rank_protocol::SpoolBatch> batch =
        between(spool_points, [&] { return rank_protocol::read_spool(path, effect.offset, effect.max_bytes); });
    if (batch.ok()) {
      take_batch(*batch, done);
    } else if (!absl::IsNotFound(batch.status())) {
      done.error = text_of(batch.status());
    } else if (effect.offset > 0) {
      done.error = absl::StrCat("its event file is gone: ", path);
    }
    return done;
  });
}

void Daemon::perform(node::ReadLogTail& effect) {
  run_in(logs_, [effect, folder = run_folder(effect.key)] {
    return between(tail_points, [&] {
      node::LogTailRead done = log_tail(folder, effect.rank);
      done.op = effect.op;
      return done;
    });
  });
}

void Daemon::perform(node::WatchSpools& effect) {
  bool all = true;
  for (const int rank : effect.ranks) {
    all = watcher_.add(rank_protocol::spool_path(rank_folder(effect.key), rank), [this, key = effect.key, rank] {
      feed(node::SpoolChanged{key, rank});
    }) && all;
  }
  if (all) return;
  log_about(effect.key, journal::Level::kWarning, "NoWatchLeft",
            "no inotify watch left: events are forwarded once a second");
}

void Daemon::perform(node::UnwatchSpools& effect) {
  for (const int rank : effect.ranks) watcher_.remove(rank_protocol::spool_path(rank_folder(effect.key), rank));
}

void Daemon::perform(node::WritePlaces& effect) {
  run_in(records_, [effect, folder = run_folder(effect.key)] {
    return Written{effect.op, text_of(between(places_points, [&] { return save_places(folder, effect.places); }))};
  });
}

void Daemon::perform(node::ForgetAttempt& effect) {
  links_.erase(effect.record.key);
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(between(forget_points, [&] {
                     (void)shim::remove_group(group_of(state->run_folder(effect.record.key)));
                     absl::Status saved = state->save(effect.record);
                     stripped_point.pass();
                     if (saved.ok()) state->strip(effect.record.key);
                     return saved;
                   }))};
  });
}

void Daemon::perform(node::DeleteFolder& effect) {
  records_.run([state = state_, effect] {
    state->remove(effect.key);
    removed_point.pass();
  });
}

void Daemon::perform(node::CleanUp& effect) {
  run_in(cleaner_, [state = state_, effect, age = options_.log_retention, bytes = options_.log_retention_bytes] {
    state->remove_old(age, bytes);
    return Written{effect.op, ""};
  });
}

void Daemon::perform(node::WriteCluster& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(between(cluster_points, [&] { return state->join(effect.cluster); }))};
  });
}

void Daemon::perform(node::WriteLeaderEpoch& effect) {
  run_in(records_, [state = state_, effect] {
    return Written{effect.op, text_of(state->write_leader_epoch(effect.epoch))};
  });
}

// What a controller asks to be read from an attempt's folders; their names are found beside the loop, too, since that
// looks at the disk.
template <typename Read>
void Daemon::answer(int64_t session, Read read) {
  logs_.run([this, post = loop_.poster(), session, read = std::move(read)] {
    post([this, session, messages = std::vector<v1::WorkerMessage>(read())] {
      for (const v1::WorkerMessage& message : messages) {
        if (session_ != nullptr) session_->send(session, message);
      }
    });
  });
}

void Daemon::perform(node::AnswerLog& effect) {
  answer(effect.session, [state = state_, effect] {
    const AttemptKey key = {effect.request.id().job_uid(), effect.request.id().number()};
    std::vector<v1::WorkerMessage> messages(1);
    *messages[0].mutable_log() = read_log(effect, valid_uid(key.job_uid) ? state->run_folder(key) : "", *state);
    return messages;
  });
}

void Daemon::perform(node::AnswerTrace& effect) {
  answer(effect.session, [state = state_, effect] {
    const AttemptKey key = {effect.request.id().job_uid(), effect.request.id().number()};
    std::vector<v1::WorkerMessage> messages(1);
    v1::TraceData& data = *messages[0].mutable_trace();
    if (valid_uid(key.job_uid) && effect.request.trace() != 0) {
      answer_trace(effect, state->rank_folder(key), &data);
    } else {
      data = refuse_trace(effect.request);
    }
    data.set_request(effect.request.request());
    return messages;
  });
}

void Daemon::perform(node::AnswerDiagnosis& effect) {
  answer(effect.session, [state = state_, effect] {
    const AttemptKey key = {effect.request.id().job_uid(), effect.request.id().number()};
    const bool good = valid_uid(key.job_uid);
    std::vector<v1::WorkerMessage> messages;
    for (v1::Diagnosis& one :
         answer_diagnosis(effect, good ? state->run_folder(key) : "", good ? state->rank_folder(key) : "")) {
      *messages.emplace_back().mutable_diagnosis() = std::move(one);
    }
    return messages;
  });
}

void Daemon::perform(node::ResetSession& effect) {
  if (session_ != nullptr) session_->reset(effect.session, effect.why);
}

void Daemon::perform(node::Log& effect) { says_.journal.write(effect.line); }

void Daemon::perform(node::Exit& /*effect*/) { loop_.stop(); }

void Daemon::add_link(const AttemptKey& key, node::Op number, host::Descriptor socket, bool subscribe) {
  Link& kept = links_[key];
  kept.number = number;
  kept.link = std::make_unique<ShimLink>(
      loop_, std::move(socket),
      ShimLink::Callbacks{[this, key, number](const json& message) { on_shim_message(key, number, message); },
                          [this, key, number] {
                            const auto found = links_.find(key);
                            if (found != links_.end() && found->second.number == number) links_.erase(found);
                            feed(node::ShimClosed{key, number});
                          }});
  if (subscribe) kept.link->send({{"command", "subscribe"}, {"id", kSubscribe}});
}

void Daemon::on_shim_message(const AttemptKey& key, node::Op link, const json& message) {
  using Kind = node::ShimSaid::Kind;
  node::ShimSaid said;
  said.key = key;
  said.link = link;
  try {
    const std::string event = message.value("event", "");
    const std::string id = message.value("id", "");
    if (event == "ready" || id == kSubscribe) {
      said.kind = Kind::kStatus;
      said.status = status_from_json(message);
    } else if (event == "exit") {
      said.kind = Kind::kExit;
      absl::StatusOr<rank_protocol::RankExit> exit =
          rank_protocol::exit_from_json(message.value("exit", json::object()));
      if (!exit.ok()) return;
      said.exit = *std::move(exit);
    } else if (event == "ended") {
      said.kind = Kind::kEnded;
      said.status = status_from_json(message);
    } else if (id == "start") {
      const bool ok = message.value("ok", false);
      said.kind = ok ? Kind::kStarted : Kind::kStartFailed;
      if (ok) said.status = status_from_json(message);
      if (!ok) said.error = text::valid_utf8(message.value("error", "the shim gave no reason"));
    } else if (event == "stacks" || (id == "stacks" && !message.value("ok", false))) {
      said.kind = Kind::kStacks;
      said.error = text::valid_utf8(message.value("error", ""));
    } else if (id == "lease") {
      said.kind = Kind::kLease;
      said.log_bytes_dropped =
          message.value("log_dropped_bytes", int64_t{0}) + message.value("log_lost_bytes", int64_t{0});
    } else {
      return;
    }
  } catch (const json::exception& error) {
    return log_about(key, journal::Level::kError, "ShimNotUnderstood",
                     absl::StrCat("its shim said what is not of its protocol: ", error.what()));
  }
  feed(said);
}

}  // namespace titan::daemon
