#pragma once

#include <cstddef>
#include <cstdint>

namespace titan::storage {

// Returns the CRC-32C (Castagnoli) of `bytes`, continuing from `crc` (0 at the start): crc32c(ab) == crc32c(b,
// crc32c(a)). Uses the SSE4.2 instruction where the CPU has it.
uint32_t crc32c(const void* bytes, size_t size, uint32_t crc = 0);

// Computes the same with tables, for CPUs without the instruction. Tests compare the two.
uint32_t crc32c_portable(const void* bytes, size_t size, uint32_t crc = 0);

}  // namespace titan::storage
