// Prints the default configuration as JSON, or a file's: the Python tests compare it with torchtitan's own.
#include <iostream>

#include "common/config/fields.h"
#include "common/config/json.h"
#include "common/config/load.h"
#include "common/config/support.h"
#include "nlohmann/json.hpp"

namespace {

// One line per key: its name, and "used" or why nothing reads it yet.
void print_keys() {
  titan::config::JobConfig config;
  for (const auto& section : titan::config::sections(config)) {
    for (const auto& field : section.fields) {
      const std::string key = std::string(section.name) + "." + std::string(field.key);
      std::string state = field.no_effect.empty() ? "used" : "without effect";
      for (const auto& row : titan::config::unsupported()) {
        if (row.key == key) state = "unsupported";
      }
      for (const auto& row : titan::config::harmless()) {
        if (row.key == key) state = "without effect";
      }
      for (const auto& row : titan::config::details()) {
        if (row.key == key || (row.key.back() == '.' && key.rfind(row.key, 0) == 0)) state = "detail";
      }
      std::cout << key << " " << state << "\n";
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--schema") {
    std::cout << titan::config::json_schema().dump(1) << "\n";
    return 0;
  }
  if (argc == 2 && std::string(argv[1]) == "--keys") {
    print_keys();
    return 0;
  }
  const auto loaded = argc > 1 ? titan::config::load_file(argv[1], std::vector<std::string>(argv + 2, argv + argc))
                               : titan::config::load_overrides({});
  if (!loaded.ok()) {
    std::cerr << loaded.status().message() << "\n";
    return 2;
  }
  for (const std::string& warning : loaded->warnings) std::cerr << "warning: " << warning << "\n";
  std::cout << titan::config::to_json(loaded->config).dump(1) << "\n";
  return 0;
}
