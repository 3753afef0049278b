#pragma once

#include <set>

#include "controller/api/answer_router.h"
#include "controller/api/convert.h"
#include "controller/api/stream.h"

namespace titan::api {

// Rank logs, read from the nodes that hold them: the next piece is asked for when the last one was written, so that a
// slow reader slows the reading and nothing piles up here.
class LogTail : public Stream<v1::LogChunk> {
 public:
  LogTail(reconcile::Reconciler& reconciler, LogRouter& router, v1::TailLogsRequest request)
      : reconciler_(reconciler), router_(router), request_(std::move(request)) {}
  ~LogTail() override { router_.drop(asked_); }

  // Every 200 ms: looks again at logs that had nothing new, and gives up on a node that does not answer.
  void wake() override;

 protected:
  void refill() override;

 private:
  struct Source {
    int attempt = 0;
    int rank = 0;
    std::string node;
    int64_t offset = 0;
    int64_t tail_lines = 0;  // Of the first read, with offset -1.
    bool idle = false;       // Nothing new until the next tick.
    bool closed = false;
    bool noticed = false;  // The reader knows that the node cannot be reached.
  };

  bool open();
  void add_sources(const job::AttemptRecord& attempt, bool from_start);
  void ask(size_t index);
  void on_data(size_t index, const v1::LogData& data);
  void on_unreachable(Source& source, const std::string& why);
  void finish_or_go_on();
  v1::LogChunk chunk(const Source& source) const;

  reconcile::Reconciler& reconciler_;
  LogRouter& router_;
  const v1::TailLogsRequest request_;
  std::string uid_;
  bool opened_ = false;
  std::set<int> attempts_;  // With sources.
  std::vector<Source> sources_;
  size_t next_ = 0;
  int64_t asked_ = 0;  // Request on its way; 0: none.
  size_t asked_source_ = 0;
  int ticks_waited_ = 0;
};

}  // namespace titan::api
