// Reads a config.json per line from standard input, and prints for each the model as JSON, or the error as a text.

#include <iostream>
#include <string>

#include "common/plan/hf_config/read.h"
#include "common/plan/models/spec_json.h"
#include "nlohmann/json.hpp"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto read = titan::hf_config::read_model(nlohmann::json::parse(line));
    const nlohmann::json answer =
        read.ok() ? titan::models::to_json(read->spec) : nlohmann::json(read.status().message());
    std::cout << answer << "\n";
  }
}
