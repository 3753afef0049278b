#pragma once

#include <optional>

#include "absl/time/time.h"
#include "controller/api/node_stream.h"

namespace titan::api {

// Checks a request for a trace. Errors: InvalidArgument naming the field; NotFound for an attempt that the job does not
// have.
absl::Status check_profile_request(const v1::ProfileJobRequest& request, const reconcile::JobView& view);

// Streams a trace of some ranks, from the request to its last byte. First it only probes every rank, so that one that
// cannot record is reported before any other records. Then all get the same steps to record, a little ahead of where
// they are. Only a rank's node knows whether it was asked already: a call that resumes after a restart of the
// controller finds what the first one began.
class TraceStream : public NodeStream<v1::TraceChunk, v1::TraceData> {
 public:
  TraceStream(reconcile::Reconciler& reconciler, TraceRouter& router, v1::ProfileJobRequest request);

  // Passes on the job, or why the reconciler refuses the trace. Call it once, from any thread, also under the
  // reconciler's lock. It takes effect at the next wake().
  void accept(const absl::StatusOr<reconcile::JobViewPtr>& view);

 protected:
  void refill() override;
  void recheck_sources() override;
  void on_answer(size_t index, const v1::TraceData& answer) override;
  void on_unreachable(size_t index, const std::string& why) override;

 private:
  struct Source {
    int rank = 0;
    std::string node;
    v1::TraceData seen;  // The last answer, without its bytes.
    bool answered = false;
    bool reported = false;  // The reader knows its state.
    bool idle = false;      // Nothing new until the next tick.
    bool closed = false;
    std::string trouble;  // Why the rank cannot answer: gone, or unreachable.
    int64_t offset = 0;
    absl::Time moved;  // When it last made progress.
  };

  bool open();
  void plan();
  void ask(size_t index);
  void send_state(const Source& source, const v1::TraceData& answer);
  bool ends_for(const Source& source);

  const v1::ProfileJobRequest request_;
  const uint64_t trace_;
  sync::Mutex accept_mutex_;  // The innermost lock.
  std::optional<absl::StatusOr<reconcile::JobViewPtr>> accepted_ TITAN_GUARDED_BY(accept_mutex_);
  bool opened_ = false;
  std::string uid_;
  int attempt_ = 0;
  std::vector<Source> sources_;
  int64_t first_step_ = 0;  // 0: the ranks were only probed so far.
  size_t next_ = 0;
};

}  // namespace titan::api
