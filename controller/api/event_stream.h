#pragma once

#include "controller/api/convert.h"
#include "controller/api/stream.h"
#include "controller/store/store.h"

namespace titan::api {

// Durable events read from the store: a follower keeps only the key that it has come to.
class EventStream : public Stream<v1::Event> {
 public:
  EventStream(reconcile::Reconciler& reconciler, store::Store& store, v1::ListEventsRequest request)
      : reconciler_(reconciler), store_(store), request_(std::move(request)) {}

 protected:
  void refill() override;

 private:
  bool open();
  void read_subject();
  void read_everything();
  bool over() const;

  reconcile::Reconciler& reconciler_;
  store::Store& store_;
  const v1::ListEventsRequest request_;
  bool opened_ = false;
  std::string prefix_;  // Of one job's or node's events; empty: of all, in the order of the log.
  std::string after_;   // Last key sent.
  std::string job_uid_;
  int64_t revision_ = 0;  // For all events: what of the log was read.
  bool snapshot_sent_ = false;
};

}  // namespace titan::api
