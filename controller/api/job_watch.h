#pragma once

#include "controller/api/convert.h"
#include "controller/api/stream.h"

namespace titan::api {

// Jobs as they are, then every later change.
class JobWatch : public Stream<v1::JobChange> {
 public:
  JobWatch(reconcile::Published& published, std::string name, int64_t revision)
      : published_(published), name_(std::move(name)), from_(revision) {}

  // To be woken a few times a second: says where the watch is when nothing happens for 10 s.
  std::shared_ptr<reconcile::Waker> bookmarks();

 protected:
  void refill() override;

 private:
  struct Bookmarks;
  void tick();
  void add_change(v1::JobChange::Kind kind, const reconcile::JobViewPtr& view, int64_t revision);
  bool first();

  reconcile::Published& published_;
  const std::string name_;  // Empty: all jobs.
  const int64_t from_;
  int64_t cursor_ = -1;
  int64_t revision_ = 0;
  int quiet_ticks_ = 0;
  bool bookmark_due_ = false;
  std::shared_ptr<Bookmarks> bookmarks_;
};

}  // namespace titan::api
