#pragma once

#include <deque>
#include <string>
#include <utility>

#include "controller/api/convert.h"
#include "controller/api/stream.h"
#include "controller/auth/caller.h"
#include "controller/store/store.h"

namespace titan::api {

using LogPosition = std::pair<int64_t, std::string>;  // A record's revision and key.

// Returns the positions of the `limit` oldest records under `prefix` that come after `last` and are not newer than the
// revision `until`, oldest first; the store itself orders records by key. Memory use is bounded by `limit`. Errors:
// those of scan().
absl::StatusOr<std::deque<LogPosition>> oldest_positions(const store::Store& store, const std::string& prefix,
                                                         const LogPosition& last, int64_t until, size_t limit);

// Streams durable events from the store. A reader that follows costs a position, not a queue of events.
class EventStream : public Stream<v1::Event> {
 public:
  EventStream(reconcile::Reconciler& reconciler, store::Store& store, v1::ListEventsRequest request,
              auth::Caller caller)
      : reconciler_(reconciler), store_(store), request_(std::move(request)), caller_(std::move(caller)) {}

 protected:
  void refill() override;

 private:
  bool open();
  void read_subject();
  void read_everything();
  absl::StatusOr<bool> read_snapshot();
  bool show(const store::Record& record);
  bool over() const;

  reconcile::Reconciler& reconciler_;
  store::Store& store_;
  const v1::ListEventsRequest request_;
  const auth::Caller caller_;  // Limits the events to those of nodes and of the caller's projects.
  bool opened_ = false;
  std::string prefix_;  // Prefix of one job's or node's events; empty: all events, in the order of the log.
  std::string after_;   // Last key read.
  std::string job_uid_;
  // Used only when all events are read:
  std::deque<LogPosition> places_;  // Events to send next, oldest first.
  LogPosition last_sent_;
  bool more_positions_ = true;  // The store may hold more than `places_`.
  bool in_snapshot_ = true;
  int64_t revision_ = 0;  // Newest revision of the log that was read.
};

}  // namespace titan::api
