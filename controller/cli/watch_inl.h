#pragma once

// Included by watch.h only.

#include <algorithm>
#include <memory>

#include "absl/time/clock.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {

template <typename Message>
absl::Status follow_stream(
    const Client& client, absl::Time deadline, Stopper& stopper,
    const std::function<std::unique_ptr<grpc::ClientReader<Message>>(grpc::ClientContext&)>& open,
    const std::function<bool(const Message&)>& read, bool reconnect) {
  if (absl::Status bad = client.check(); !bad.ok()) return bad;
  absl::Time lost = absl::InfinitePast();
  bool said = false;
  while (!stopper.cancelled()) {
    grpc::ClientContext context;
    client.introduce(context);
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
    client.turn_away();
    const absl::Time now = absl::Now();
    if (lost == absl::InfinitePast()) lost = now;
    // The first contact obeys --timeout like any call; a controller that was there may take its time to come back.
    if (!reconnect && now - lost > client.timeout()) return to_status(status);
    if (!said && now - lost > absl::Seconds(1)) {
      note("the controller at " + client.address() + " cannot be reached; the job goes on, waiting ...");
      said = true;
    }
    client.wait(std::min(absl::Milliseconds(200), std::max(absl::ZeroDuration(), deadline - now)));
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError("--timeout ran out while waiting for the controller");
  }
  return absl::CancelledError("interrupted");
}

}  // namespace titan::cli
