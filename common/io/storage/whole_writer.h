#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace titan::storage {

// Files that replace a whole one in a single step by themselves, where others need a temporary one and a rename.
// atomic_write() asks for it.
class WholeWriter {
 public:
  virtual ~WholeWriter() = default;
  // Whether it does so for this path.
  virtual bool writes_whole(const std::string& path) const = 0;
  virtual absl::Status write_whole(const std::string& path, std::string_view bytes) = 0;
};

}  // namespace titan::storage
