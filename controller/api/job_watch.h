#pragma once

#include <string>
#include <vector>

#include "controller/api/convert.h"
#include "controller/api/stream.h"
#include "controller/auth/caller.h"
#include "grpcpp/support/byte_buffer.h"

namespace titan::api {

// Sends the present jobs, a page at a time, then every later change. Writes v1::JobChange as bytes: a job is encoded
// once for all watchers.
class JobWatch : public Stream<grpc::ByteBuffer> {
 public:
  JobWatch(const reconcile::Published& published, std::string name, int64_t revision, auth::Caller caller)
      : published_(published), name_(std::move(name)), from_(revision), caller_(std::move(caller)) {}

  // Returns the waker to call a few times a second: it sends a bookmark when nothing has happened for 10 s.
  std::shared_ptr<reconcile::Waker> bookmarks();

 protected:
  void refill() override;

 private:
  struct Bookmarks;
  // A page of the snapshot: jobs up to `last_order` were read when the changes had reached `cursor`.
  struct Page {
    int64_t last_order = 0;
    int64_t cursor = 0;
  };
  void tick();
  void add_change(v1::JobChange::Kind kind, const reconcile::PublishedViewPtr& view, int64_t revision);
  bool begin_watch();
  void add_job();
  void add_page();
  bool add_page_of_seen();
  bool was_in_snapshot(const reconcile::JobView& view, int64_t cursor) const;
  bool add_changes();

  const reconcile::Published& published_;
  const std::string name_;  // Empty: all jobs.
  const int64_t from_;
  const auth::Caller caller_;  // Limits the watch to the jobs of the caller's projects.
  int64_t cursor_ = -1;        // Position of the next change.
  int64_t revision_ = 0;
  bool in_snapshot_ = false;
  std::vector<Page> pages_;  // Kept until the changes since the snapshot began were read.
  int quiet_ticks_ = 0;
  bool bookmark_due_ = false;
  std::shared_ptr<Bookmarks> bookmarks_;
};

}  // namespace titan::api
