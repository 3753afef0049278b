#include "common/io/storage/standard_paths.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/base/host/host_facts.h"

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

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string state_folder_of(bool is_root, const std::string& xdg_state_home, const std::string& home,
                            const std::string& name) {
  if (is_root) return "/var/lib/titan/" + name;
  if (xdg_state_home.rfind('/', 0) == 0) return xdg_state_home + "/titan/" + name;  // XDG: relative paths are ignored.
  if (home.rfind('/', 0) == 0) return home + "/.local/state/titan/" + name;
  return "";
}

std::string default_state_folder(const std::string& name) {
  return state_folder_of(::geteuid() == 0, variable("XDG_STATE_HOME"), variable("HOME"), name);
}

}  // namespace titan::storage
