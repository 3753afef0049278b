#pragma once

// Reads Python's pickles without running anything. It knows the opcodes and names that checkpoints of PyTorch contain,
// represents calls as data, and refuses everything else by name.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {

// Limits of read(), so that a damaged or hostile pickle cannot exhaust memory.
struct ReadLimits {
  size_t bytes = size_t{1} << 30;
  size_t values = 100'000'000;  // About 64 bytes each.
  size_t depth = 64;            // Nesting of collections.
};

// `where` begins messages, which also name the byte. Errors: DataLoss for damaged or truncated input;
// FailedPrecondition for an opcode or a name that checkpoints do not contain; ResourceExhausted beyond a limit.
absl::StatusOr<ParsedPickle> read(std::string bytes, const std::string& where, const ReadLimits& limits = {});

}  // namespace titan::pickle
