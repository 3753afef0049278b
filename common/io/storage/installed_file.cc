#include "common/io/storage/installed_file.h"

#include <filesystem>
#include <system_error>

#include "common/base/host/own_program.h"

namespace titan::storage {

std::string installed_file(const std::string& name) {
  const std::filesystem::path own = host::folder_of_program();
  std::error_code error;
  for (const char* folder : {".", "../bin", "../lib/titan"}) {
    const std::filesystem::path path = own / folder / name;
    if (!own.empty() && std::filesystem::exists(path, error)) return path.string();
  }
  return "";
}

}  // namespace titan::storage
