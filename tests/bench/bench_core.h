#pragma once

// A controller's core with the nodes of a cluster in one process: no store, no sockets, and a clock that is set by
// hand.

#include "absl/strings/str_cat.h"
#include "controller/core/core.h"

namespace titan::core {

class BenchCore {
 public:
  virtual ~BenchCore() = default;

  // Applies the input and everything that follows from it; every write is durable at once.
  virtual void take(Input input) = 0;

  void tick() {
    now_.monotonic += absl::Milliseconds(250);
    now_.wall += absl::Milliseconds(250);
    take(Tick{});
  }

 protected:
  BenchCore() : core_(options()) { core_.load({}, {}, now_); }

  // Returns the first message of node `i`, whose session is i + 1.
  static OpenSession hello(int i, int devices) {
    OpenSession open;
    open.session = i + 1;
    open.hello.node = absl::StrCat("node", i);
    open.hello.instance = "i";
    open.hello.device = "cuda";
    open.hello.devices = devices;
    open.hello.cpu_cores = 64;
    return open;
  }

  Now now_{absl::Hours(1), absl::FromUnixSeconds(1'700'000'000)};
  Core core_;

 private:
  static CoreOptions options() {
    CoreOptions options;
    options.lease = absl::Hours(1);
    options.beat = absl::Minutes(10);
    options.jitter = [] { return 0.0; };
    return options;
  }
};

}  // namespace titan::core
