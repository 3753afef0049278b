#pragma once

// Shared parts of the daemon's effects: running slow work outside the loop, and failpoints around it.

#include <thread>
#include <utility>

#include "common/service/failpoint/failpoint.h"
#include "worker/node/daemon/daemon.h"

namespace titan::daemon {

// Failpoints before and after a lasting change, at which tests can end the daemon. See common/service/failpoint.
struct FailpointPair {
  failpoint::Failpoint before, after;
};

// Runs the work between both points.
template <typename Work>
auto with_failpoints(FailpointPair& points, Work work) {
  points.before.pass();
  auto done = work();
  points.after.pass();
  return done;
}

template <typename Work>
void Daemon::run_in(SerialExecutor& lane, Work work) {
  lane.run([this, post = loop_.poster(), work = std::move(work)] {
    post([this, done = node::Input(work())] { feed(done); });
  });
}

// Runs the work on a separate thread: shared storage that hangs for one job must not delay another.
template <typename Work>
void Daemon::run_aside(Work work) {
  std::thread([this, post = loop_.poster(), work = std::move(work)] {
    post([this, done = node::Input(work())] { feed(done); });
  }).detach();
}

}  // namespace titan::daemon
