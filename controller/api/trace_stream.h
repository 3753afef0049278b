#pragma once

#include <optional>

#include "absl/time/time.h"
#include "controller/api/answer_router.h"
#include "controller/api/convert.h"
#include "controller/api/stream.h"

namespace titan::api {

// Errors: InvalidArgument naming the field; NotFound for an attempt that the job has not had.
absl::Status check_profile_request(const v1::ProfileJobRequest& request, const reconcile::JobView& view);

// A trace of some ranks, from asking for it to its last byte. First every rank is only looked at, so that one which
// cannot record is told before any other does; then all get the same steps to record, a little ahead of where they are.
// Whether a rank was asked already is known on its node, and nothing of it here: a call that goes on after a restart of
// the controller finds what the first one began.
class TraceStream : public Stream<v1::TraceChunk> {
 public:
  TraceStream(reconcile::Reconciler& reconciler, TraceRouter& router, v1::ProfileJobRequest request);
  ~TraceStream() override { router_.drop(asked_); }

  // Whether the reconciler lets it begin, and the job; once, from any thread, also under the reconciler's lock. Seen at
  // the next wake().
  void accept(const absl::StatusOr<reconcile::JobViewPtr>& view);

  // Every 200 ms: looks again at ranks that had nothing new, and gives up on a node that does not answer.
  void wake() override;

 protected:
  void refill() override;

 private:
  struct Source {
    int rank = 0;
    std::string node;
    v1::TraceData seen;  // The last answer, without its bytes.
    bool answered = false;
    bool told = false;  // The reader knows its state.
    bool idle = false;  // Nothing new until the next tick.
    bool closed = false;
    std::string trouble;  // Why it says nothing: gone, or out of reach.
    int64_t offset = 0;
    absl::Time moved;  // When it was last seen to do something.
  };

  bool open();
  void plan();
  void ask(size_t index);
  void on_answer(size_t index, const v1::TraceData& answer);
  void take_answer(Source& source, const v1::TraceData& answer);
  void tell(const Source& source, const v1::TraceData& answer);
  void on_unreachable(Source& source, const std::string& why);
  bool ends_for(const Source& source);

  reconcile::Reconciler& reconciler_;
  TraceRouter& router_;
  const v1::ProfileJobRequest request_;
  const uint64_t trace_;
  sync::Mutex accept_mutex_;  // Innermost.
  std::optional<absl::StatusOr<reconcile::JobViewPtr>> accepted_ TITAN_GUARDED_BY(accept_mutex_);
  bool opened_ = false;
  std::string uid_;
  int attempt_ = 0;
  std::vector<Source> sources_;
  int64_t first_step_ = 0;  // 0: the ranks are only looked at so far.
  size_t next_ = 0;
  int64_t asked_ = 0;  // Request on its way; 0: none.
  size_t asked_source_ = 0;
  int ticks_waited_ = 0;
};

}  // namespace titan::api
