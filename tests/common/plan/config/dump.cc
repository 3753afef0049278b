// Prints the default configuration, a file's configuration or the schema as JSON for the Python tests.
#include <iostream>

#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "nlohmann/json.hpp"

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--schema") {
    std::cout << titan::config::json_schema().dump(1) << "\n";
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
