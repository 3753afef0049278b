// Renders templates for comparison with Python. Each line of input is {"template": "..", "variables": {..}}. Each line
// of output is {"text": "..", "generations": [[begin, end], ..]} or {"error": "..", "parsed": true if parsing
// succeeded}.
#include <iostream>
#include <string>

#include "common/io/jinja/template.h"
#include "nlohmann/json.hpp"

namespace {

using nlohmann::ordered_json;
using namespace titan::jinja;

ordered_json answer(const ordered_json& request) {
  const auto parsed = Template::parse(request.at("template").get<std::string>());
  if (!parsed.ok()) return {{"error", std::string(parsed.status().message())}, {"parsed", false}};
  const auto variables = from_json(request.at("variables"));
  if (!variables.ok()) return {{"error", std::string(variables.status().message())}, {"parsed", true}};
  const auto rendered = parsed->render(*as_mapping(*variables));
  if (!rendered.ok()) return {{"error", std::string(rendered.status().message())}, {"parsed", true}};
  return {{"text", rendered->text}, {"generations", rendered->generations}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << answer(ordered_json::parse(line)).dump(-1, ' ', true, ordered_json::error_handler_t::replace)
              << std::endl;
  }
}
