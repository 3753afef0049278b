#pragma once

// Constants of the zip format (APPNOTE 6.3).

#include <cstdint>

namespace titan::pickle {

inline constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEndRecord = 0x06054b50,
                          kEndRecord64 = 0x06064b50, kLocator64 = 0x07064b50, kDescriptor = 0x08074b50;
inline constexpr int64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;

inline constexpr uint64_t kIn64 = 0xffffffff;  // The value is in the 64-bit extension.

}  // namespace titan::pickle
