#include "common/base/host/own_program.h"

#include <system_error>

namespace titan::host {

std::filesystem::path folder_of_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace titan::host
