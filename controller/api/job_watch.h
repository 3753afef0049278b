#pragma once

#include <string>
#include <vector>

#include "controller/api/convert.h"
#include "controller/api/stream.h"
#include "controller/auth/caller.h"
#include "grpcpp/support/byte_buffer.h"

namespace titan::api {

// Jobs as they are, a page at a time, then every later change. Writes v1::JobChange as bytes: the job's are made once
// for all watchers.
class JobWatch : public Stream<grpc::ByteBuffer> {
 public:
  JobWatch(const reconcile::Published& published, std::string name, int64_t revision, auth::Caller caller)
      : published_(published), name_(std::move(name)), from_(revision), caller_(std::move(caller)) {}

  // To be woken a few times a second: says where the watch is when nothing happens for 10 s.
  std::shared_ptr<reconcile::Waker> bookmarks();

 protected:
  void refill() override;

 private:
  struct Bookmarks;
  // A part of the snapshot: jobs up to this order were read when the changes went up to this cursor.
  struct Page {
    int64_t last_order = 0;
    int64_t cursor = 0;
  };
  void tick();
  void add_change(v1::JobChange::Kind kind, const reconcile::ShownPtr& view, int64_t revision);
  bool begin_watch();
  void add_job();
  void add_page();
  bool add_page_of_seen();
  bool was_in_snapshot(const reconcile::JobView& view, int64_t cursor) const;
  bool add_changes();

  const reconcile::Published& published_;
  const std::string name_;  // Empty: all jobs.
  const int64_t from_;
  const auth::Caller caller_;  // Sees the jobs of some projects.
  int64_t cursor_ = -1;        // Of the next change.
  int64_t revision_ = 0;
  bool in_snapshot_ = false;
  std::vector<Page> pages_;  // Until the changes since the snapshot began have been looked through.
  int quiet_ticks_ = 0;
  bool bookmark_due_ = false;
  std::shared_ptr<Bookmarks> bookmarks_;
};

}  // namespace titan::api
