#pragma once

#include <set>

#include "controller/api/node_stream.h"

namespace titan::api {

// Streams rank logs from the nodes that hold them. Where that is impossible, it sends the end of a failed rank's log
// that the controller kept.
class LogTail : public NodeStream<v1::LogChunk, v1::LogData> {
 public:
  LogTail(reconcile::Reconciler& reconciler, const store::Store& store, LogRouter& router, v1::TailLogsRequest request)
      : NodeStream(reconciler, router), store_(store), request_(std::move(request)) {}

 protected:
  void refill() override;
  void recheck_sources() override;
  void on_answer(size_t index, const v1::LogData& data) override;
  void on_unreachable(size_t index, const std::string& why) override;

 private:
  struct Source {
    int attempt = 0;
    int rank = 0;
    std::string node;
    int64_t offset = 0;
    int64_t tail_lines = 0;  // For the first read, with offset -1.
    bool idle = false;       // Nothing new until the next tick.
    bool closed = false;
    bool noticed = false;  // The reader knows that the node is unreachable.
  };

  bool open();
  void add_sources(const job::AttemptRecord& attempt, bool from_start);
  void ask(size_t index);
  void finish_or_continue();
  v1::LogChunk chunk(const Source& source) const;
  void notice(const Source& source, std::string text);
  bool show_kept(Source& source, const std::string& why);
  std::string explain_missing_log(const Source& source) const;

  const store::Store& store_;
  const v1::TailLogsRequest request_;
  std::string uid_;
  bool opened_ = false;
  std::set<int> attempts_;  // Attempts that have sources.
  std::vector<Source> sources_;
  size_t next_ = 0;
  std::string unreachable_;  // Rank and node of a log that may come back; empty: none.
};

}  // namespace titan::api
