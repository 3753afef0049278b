#pragma once

// Follows a job or a stream of the controller across lost connections until it ends, and reports how a job ended.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "controller/cli/client.h"
#include "controller/cli/terminal.h"

namespace titan::cli {

// Ends streams early: cancel() may be called from any thread and also ends streams that begin later.
class Stopper {
 public:
  void cancel();
  bool cancelled() const { return cancelled_.load(); }

  // Registers a running stream for as long as the scope lives.
  class Scope {
   public:
    Scope(Stopper& stopper, grpc::ClientContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Stopper& stopper_;
  };

 private:
  std::mutex mutex_;
  grpc::ClientContext* running_ = nullptr;
  std::atomic<bool> cancelled_ = false;
};

// Calls `seen` with the job's present state and after each change until `seen` returns true, and returns that job.
// Waits for a controller that cannot be reached. Errors: Cancelled (by the stopper), DeadlineExceeded (names the job's
// state), NotFound.
absl::StatusOr<v1::Job> watch_job(ControllerClient& client, const std::string& name, absl::Time deadline,
                                  Stopper& stopper, const std::function<bool(const v1::Job&)>& seen);

// Returns 0 for SUCCEEDED, else 1. Reports the end on stderr, with a hint where to look when the job did not succeed.
int report_end(const v1::Job& job);
int report_end(const v1::Job& job, std::string_view remedy);

// Explains why a job that succeeded did not train: its folder already held its last step. "" for others.
std::string nothing_to_do(const v1::Job& job);

// Reads a server stream of `Message` until it ends by itself or `read` returns true: `open` starts it, `read` takes
// each message. When no controller answers, it is opened again until `deadline`, or without `reconnect` for
// client.timeout(); `open` resumes from what `read` has seen. Errors: Cancelled by the stopper, DeadlineExceeded; those
// of the call.
template <typename Message>
absl::Status follow_stream(
    const ControllerClient& client, absl::Time deadline, Stopper& stopper,
    const std::function<std::unique_ptr<grpc::ClientReader<Message>>(grpc::ClientContext&)>& open,
    const std::function<bool(const Message&)>& read, bool reconnect = true) {
  if (absl::Status bad = client.check(); !bad.ok()) return bad;
  absl::Time lost = absl::InfinitePast();
  bool said = false;
  while (!stopper.cancelled()) {
    grpc::ClientContext context;
    client.add_credentials(context);
    if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
    const Stopper::Scope scope(stopper, context);
    auto reader = open(context);
    Message message;
    bool enough = false;
    while (!enough && reader->Read(&message)) {
      lost = absl::InfinitePast();
      said = false;
      enough = read(message);
    }
    if (enough) context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (enough || status.ok()) return absl::OkStatus();
    if (stopper.cancelled()) break;
    if (!is_unanswered(status)) return to_status(status);
    if (absl::Status fault = client.fault(status); !fault.ok()) return fault;
    client.use_next_address();
    const absl::Time now = absl::Now();
    if (lost == absl::InfinitePast()) lost = now;
    // Without `reconnect`, --timeout limits the wait for the controller; otherwise it may take its time to come back.
    if (!reconnect && now - lost > client.timeout()) return to_status(status);
    if (!said && now - lost > absl::Seconds(1)) {
      note("the controller at " + client.address() + " cannot be reached; the job keeps running, waiting ...");
      said = true;
    }
    client.wait(std::min(absl::Milliseconds(200), std::max(absl::ZeroDuration(), deadline - now)));
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError("--timeout ran out while waiting for the controller");
  }
  return absl::CancelledError("interrupted");
}

}  // namespace titan::cli
