#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace titan::stacks {

struct Registers {
  uint64_t program_counter = 0;
  uint64_t stack_pointer = 0;
  std::vector<uint64_t> by_number;  // Indexed by the machine's DWARF register number.
};

// Returns the registers of a stopped tracee; none if the machine or its mode is not supported.
std::optional<Registers> read_registers(pid_t tid);

}  // namespace titan::stacks
