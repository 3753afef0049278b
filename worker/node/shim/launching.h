#pragma once

// Starts the ranks of an attempt.

#include <string>

#include "absl/status/status.h"
#include "common/base/host/descriptor.h"
#include "worker/node/shim/log_pump.h"
#include "worker/node/shim/memory_kills.h"
#include "worker/node/shim/ranks.h"
#include "worker/node/shim/spec.h"

namespace titan::shim {

// Inputs for starting the ranks of an attempt.
struct LaunchContext {
  const Spec& spec;
  const Folders& folders;
  const std::string& store;          // HOST:PORT of the store.
  const host::Descriptor& listener;  // The store's socket, which rank 0 inherits. Empty: the store is on another node.
  MemoryKills& kills;
  LogPump& logs;
};

// Starts the rank and sends its output to its log. Errors: those of start_rank() and of opening the log.
absl::Status launch(Rank& rank, const LaunchContext& context);

}  // namespace titan::shim
