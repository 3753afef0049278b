#include "common/storage/installed_file.h"

#include <filesystem>
#include <system_error>

namespace titan::storage {

std::string installed_file(const std::string& name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* folder : {".", "../bin", "../lib/titan"}) {
    const std::filesystem::path path = program.parent_path() / folder / name;
    if (!error && std::filesystem::exists(path, error)) return path.string();
  }
  return "";
}

}  // namespace titan::storage
