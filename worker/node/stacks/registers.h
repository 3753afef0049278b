#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace titan::stacks {

struct Registers {
  uint64_t program_counter = 0;
  uint64_t stack_pointer = 0;
  std::vector<uint64_t> by_number;  // As the machine's DWARF numbers them.
};

// Of a stopped tracee. Nothing: of a machine, or a mode of it, that is not known here.
std::optional<Registers> read_registers(pid_t tid);

}  // namespace titan::stacks
