// What the controller hears of an attempt: reports, beats and events.

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/daemon/attempt.h"
#include "worker/shim/files.h"
#include "worker/shim/process.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using Phase = AttemptRecord::Phase;

void fill_exit(const shim::ExitRecord& from, v1::RankExitReport* to) {
  to->set_rank(from.rank);
  to->set_exit_code(from.exit_code);
  to->set_signal(from.signal);
  to->set_last_words(from.last_words);
  to->set_time_unix_nanos(from.time_unix_nanos);
  to->set_out_of_memory(from.out_of_memory);
  to->set_stop_reason(from.stop_reason);
}

}  // namespace

v1::AttemptReport::Phase Attempt::phase() const {
  switch (record_.phase) {
    case Phase::kPreparing:
      return v1::AttemptReport::PHASE_UNSPECIFIED;
    case Phase::kLive:
      return started_ ? v1::AttemptReport::STARTED : v1::AttemptReport::PREPARED;
    case Phase::kEnded:
    case Phase::kForgotten:
      return v1::AttemptReport::ENDED;
    case Phase::kRefused:
      return v1::AttemptReport::REFUSED;
  }
  return v1::AttemptReport::PHASE_UNSPECIFIED;
}

void Attempt::identify(v1::AttemptId* id) const {
  id->set_job_uid(record_.key.job_uid);
  id->set_number(record_.key.number);
}

// Says the present state with all exits so far, or with the one that is new.
void Attempt::report(const shim::ExitRecord* one_exit) {
  if (preparing()) return;
  v1::WorkerMessage message;
  v1::AttemptReport* const report = message.mutable_attempt();
  identify(report->mutable_id());
  report->set_phase(phase());
  report->set_store_port(store_port_);
  if (record_.leader) report->set_folder_id(record_.folder_id);
  report->set_error_reason(record_.error_reason);
  report->set_error_message(record_.error_message);
  if (one_exit != nullptr) {
    fill_exit(*one_exit, report->add_exits());
  } else {
    for (const Rank& rank : ranks_) {
      if (rank.exit != nullptr) fill_exit(*rank.exit, report->add_exits());
    }
  }
  host_.send(std::move(message));
}

// Who it is, for a controller that may not know.
void Attempt::describe(v1::AttemptInventory* item) {
  item->set_devices(over() ? 0 : static_cast<int>(record_.devices.size()));
  if (!placements_read_) {
    placements_read_ = true;
    const std::string path = run_folder_ + "/launch.json";
    struct stat file {};
    if (::stat(path.c_str(), &file) == 0)
      start_unix_nanos_ = int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
    const absl::StatusOr<rank_protocol::Launch> launch = rank_protocol::read_launch(path);
    if (launch.ok()) job_ = launch->job;
    if (launch.ok()) threads_per_rank_ = launch->threads_per_rank;
    for (const rank_protocol::RankPlace& place :
         launch.ok() ? launch->ranks : std::vector<rank_protocol::RankPlace>()) {
      if (placements_.empty() || placements_.back().node() != place.node) {
        v1::Placement& placement = placements_.emplace_back();
        placement.set_node(place.node);
        placement.set_first_rank(place.rank);
      }
      placements_.back().set_num_ranks(placements_.back().num_ranks() + 1);
    }
  }
  item->set_job(job_);
  item->set_threads_per_rank(threads_per_rank_);
  item->set_start_unix_nanos(start_unix_nanos_);
  item->mutable_placements()->Assign(placements_.begin(), placements_.end());
}

int Attempt::running_ranks() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; }));
}

bool Attempt::may_print(int rank) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [rank](const Rank& it) { return it.rank == rank; });
  return !over() && found != ranks_.end() && found->exit == nullptr;
}

Attempt::Rank* Attempt::find(int rank) {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [rank](const Rank& it) { return it.rank == rank; });
  return found == ranks_.end() ? nullptr : &*found;
}

rank_protocol::Beacon* Attempt::beacon_of(Rank& rank) {
  if (rank.beacon == nullptr && started_) {
    auto beacon = rank_protocol::Beacon::open(rank_protocol::beacon_path(run_folder_, rank.rank));
    if (beacon.ok()) rank.beacon = *std::move(beacon);
  }
  return rank.beacon.get();
}

// A long validation or microbatch shows its progress by its collectives.
int64_t progress_of(const rank_protocol::BeaconPage& page) {
  return static_cast<int64_t>(page.counter.load()) + page.collective_seq.load();
}

void Attempt::fill(google::protobuf::RepeatedPtrField<v1::RankStatus>* ranks) {
  for (Rank& rank : ranks_) {
    v1::RankStatus* const status = ranks->Add();
    status->set_rank(rank.rank);
    status->set_pid(rank.pid);
    status->set_start_ticks(rank.start_ticks);
    const rank_protocol::Beacon* const beacon = beacon_of(rank);
    if (beacon == nullptr) continue;
    const rank_protocol::BeaconPage& page = beacon->page();
    status->set_step(page.step.load());
    status->set_phase(rank_protocol::name(static_cast<rank_protocol::Phase>(page.phase.load())));
    const int64_t in_phase = shim::monotonic_nanos() - page.phase_since.load();
    status->set_phase_milliseconds(std::max<int64_t>(0, in_phase / 1'000'000));
    status->set_counter(progress_of(page));
  }
}

void Attempt::on_session() {
  for (Rank& rank : ranks_) rank.tail.rewind();
  forward_events();
  report();
}

void Attempt::forward_events(int rank_number) {
  if (record_.phase == Phase::kForgotten || !host_.connected()) return;
  for (Rank& rank : ranks_) {
    if (rank_number >= 0 && rank.rank != rank_number) continue;
    for (;;) {
      absl::StatusOr<std::vector<rank_protocol::SpoolLine>> lines = rank.tail.next();
      if (!lines.ok() && !rank.damaged) {
        rank.damaged = true;
        note(std::string(lines.status().message()));
      }
      if (!lines.ok() || lines->empty()) break;
      v1::WorkerMessage message;
      v1::RankEvents* const events = message.mutable_events();
      identify(events->mutable_id());
      events->set_rank(rank.rank);
      for (rank_protocol::SpoolLine& line : *lines) {
        v1::RankEvent* const event = events->add_events();
        event->set_sequence(line.sequence);
        event->set_json(std::move(line.json));
      }
      host_.count_events(static_cast<int64_t>(lines->size()));
      host_.send(std::move(message));
    }
  }
}

void Attempt::acknowledge(int rank_number, int64_t sequence) {
  Rank* const rank = find(rank_number);
  if (rank == nullptr || !rank->tail.acknowledge(sequence)) return;
  save_places();
  forward_events(rank_number);  // The window may have been full.
}

void Attempt::save_places() const {
  json places = json::object();
  for (const Rank& rank : ranks_) {
    const SpoolTail::Place& place = rank.tail.acknowledged();
    places[absl::StrCat(rank.rank)] = {{"offset", place.offset}, {"sequence", place.sequence}};
  }
  // An old place after a failed write costs a repetition, which the numbers reveal.
  const absl::Status saved = shim::write_file(run_folder_ + "/offsets.json", places.dump());
  if (!saved.ok()) note(std::string(saved.message()));
}

std::map<int, SpoolTail::Place> Attempt::load_places() const {
  std::map<int, SpoolTail::Place> places;
  const absl::StatusOr<std::string> text = shim::read_file(run_folder_ + "/offsets.json");
  const json saved = text.ok() ? json::parse(*text, nullptr, false) : json();
  if (!saved.is_object()) return places;
  for (const auto& [rank, place] : saved.items()) {
    if (!place.is_object()) continue;
    places[std::atoi(rank.c_str())] = {place.value("offset", int64_t{0}), place.value("sequence", int64_t{0})};
  }
  return places;
}

}  // namespace titan::daemon
