// Answers requests on standard input for oracle_test.py, one block of lines each, ended by a line ".":
//   schedule NAME RANKS STAGES_PER_RANK MICROBATCHES   the schedule as CSV
//   split STAGES LAYERS FIRST_LESS LAST_LESS           a line of block names per stage
// An error is the line "error MESSAGE".
#include <iostream>
#include <sstream>
#include <string>

#include "absl/strings/str_join.h"
#include "common/plan/pipeline/csv.h"
#include "common/plan/pipeline/generators.h"
#include "common/plan/pipeline/plan.h"

namespace titan::pipeline {
namespace {

absl::StatusOr<std::string> answer(std::istream& request) {
  std::string what, name;
  int a = 0, b = 0, c = 0, d = 0;
  request >> what;
  if (what == "schedule") {
    request >> name >> a >> b >> c;
    const absl::StatusOr<Schedule> schedule = generate(name, a, b, c);
    if (!schedule.ok()) return schedule.status();
    return to_csv(*schedule);
  }
  request >> a >> b >> c >> d;
  const absl::StatusOr<Split> split = split_layers(a, b, c, d);
  if (!split.ok()) return split.status();
  std::string text;
  for (const auto& blocks : *split) text += absl::StrJoin(blocks, " ") + "\n";
  return text;
}

}  // namespace
}  // namespace titan::pipeline

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream request(line);
    const absl::StatusOr<std::string> text = titan::pipeline::answer(request);
    std::cout << (text.ok() ? *text : "error " + std::string(text.status().message()) + "\n") << ".\n" << std::flush;
  }
}
