#pragma once

// Reads Python's pickles without running anything: it knows the opcodes and the names that checkpoints of PyTorch
// contain, keeps what they would have called as data, and refuses everything else by name.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {

struct Limits {
  size_t bytes = size_t{1} << 30;
  size_t values = 100'000'000;  // Of about 64 bytes each.
  size_t depth = 64;            // Of collections that are begun inside others.
};

// `where` stands in front of messages, which name the byte as well. Errors: DataLoss for what is damaged or cut short,
// FailedPrecondition for an opcode or a name that such files do not contain, ResourceExhausted beyond a limit.
absl::StatusOr<Document> read(std::string bytes, const std::string& where, const Limits& limits = {});

}  // namespace titan::pickle
