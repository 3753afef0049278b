#pragma once

#include <deque>
#include <string>
#include <utility>

#include "controller/api/convert.h"
#include "controller/api/stream.h"
#include "controller/auth/caller.h"
#include "controller/store/store.h"

namespace titan::api {

using Place = std::pair<int64_t, std::string>;  // A record's revision and key.

// Records lie by key. This says which to read in the order of the log: those below the prefix after the place `last`
// and not newer than the revision `until`, the `limit` oldest of them, oldest first. Whatever there is, it takes room
// for so many. Errors: those of scan().
absl::StatusOr<std::deque<Place>> oldest_places(const store::Store& store, const std::string& prefix, const Place& last,
                                                int64_t until, size_t limit);

// Durable events read from the store: a follower keeps only the key that it has come to.
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
  const auth::Caller caller_;  // Sees events of the jobs of some projects, and those of nodes.
  bool opened_ = false;
  std::string prefix_;  // Of one job's or node's events; empty: of all, in the order of the log.
  std::string after_;   // Last key sent.
  std::string job_uid_;
  // For all events:
  std::deque<Place> places_;  // Of those to be sent next, oldest first.
  Place last_sent_;
  bool more_places_ = true;  // There may be more than are in the list.
  bool in_snapshot_ = true;
  int64_t revision_ = 0;  // What of the log was read.
};

}  // namespace titan::api
