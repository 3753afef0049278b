#pragma once

// What the files of the daemon's effects share: how slow work is done beside the loop, and where tests end the daemon.

#include <thread>
#include <utility>

#include "common/service/failpoint/failpoint.h"
#include "worker/node/daemon/daemon.h"

namespace titan::daemon {

// Where a daemon may be made to end, for tests: before and after what it leaves behind. See common/service/failpoint.
struct Around {
  failpoint::Point before, after;
};

// Does the work between both points.
template <typename Work>
auto between(Around& points, Work work) {
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

// Shared storage that hangs for one job must not hold up another.
template <typename Work>
void Daemon::run_aside(Work work) {
  std::thread([this, post = loop_.poster(), work = std::move(work)] {
    post([this, done = node::Input(work())] { feed(done); });
  }).detach();
}

}  // namespace titan::daemon
