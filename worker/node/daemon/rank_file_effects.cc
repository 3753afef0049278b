// Reads what ranks write, which are their events and the ends of their logs, and records the positions.

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/daemon/effects.h"
#include "worker/node/daemon/run_folder.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using node::Written;

FailpointPair spool_points{failpoint::Failpoint("worker.spool"), failpoint::Failpoint("worker.spool.read")},
    tail_points{failpoint::Failpoint("worker.log_tail"), failpoint::Failpoint("worker.log_tail.read")},
    places_points{failpoint::Failpoint("worker.places"), failpoint::Failpoint("worker.placed")};

// Takes the valid events, as valid UTF-8, and describes the invalid ones.
void take_batch(const rank_protocol::SpoolBatch& batch, node::SpoolRead& done) {
  done.next_offset = batch.next_offset;
  done.was_cut = batch.was_cut;
  for (const rank_protocol::DamagedRange& part : batch.damage) {
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

void Daemon::perform(node::ReadSpool& effect) {
  run_in(spools_, [state = state_, effect] {
    const std::string path = rank_protocol::spool_path(state->rank_folder(effect.key), effect.rank);
    node::SpoolRead done{effect.op, {}, effect.offset, ""};
    absl::StatusOr<rank_protocol::SpoolBatch> batch =
        with_failpoints(spool_points, [&] { return rank_protocol::read_spool(path, effect.offset, effect.max_bytes); });
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
    return with_failpoints(tail_points, [&] {
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
    return Written{effect.op,
                   text_of(with_failpoints(places_points, [&] { return save_places(folder, effect.places); }))};
  });
}

}  // namespace titan::daemon
