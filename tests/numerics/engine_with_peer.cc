// Compares one training step of the production engine, as threads over several meshes, with the record of the oracles
// (tests/peer/one_step.py): logits and every parameter's gradient.
//   engine_with_peer CASE_FOLDER...
// Prints one JSON line per check; exits with 1 if a check fails.

#include <iostream>
#include <string>
#include <vector>

#include "tests/numerics/engine_on_mesh.h"
#include "tests/numerics/golden_case.h"
#include "tests/numerics/golden_report.h"

namespace titan::testing {
namespace {

struct Row {
  const char* name;
  mesh::Degrees degrees;
  int world;
};

const Row kMeshes[] = {{"engine, 1 rank", {}, 1},
                       {"engine, FSDP 2", {.dp_shard = 2}, 2},
                       {"engine, DDP 2", {.dp_replicate = 2, .dp_shard = 1}, 2},
                       {"engine, HSDP 2x2", {.dp_replicate = 2, .dp_shard = 2}, 4}};

bool compare(const std::string& folder) {
  const GoldenCase golden(folder);
  Reporter reporter(golden.about().at("case"));
  for (const Row& row : kMeshes) {
    const Tensors got = engine_step(golden.spec(), golden.weights(), golden.tokens(), golden.labels(), row.degrees,
                                    row.world, golden.buffers());
    reporter.report(row.name, golden.errors_of(got), true);
  }
  return reporter.good();
}

int main(const std::vector<std::string>& folders) {
  if (folders.empty()) throw std::invalid_argument("usage: engine_with_peer CASE_FOLDER...");
  bool good = true;
  for (const std::string& folder : folders) good &= compare(folder);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace titan::testing

int main(int argc, char** argv) {
  try {
    return titan::testing::main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "engine_with_peer: " << error.what() << std::endl;
    return 2;
  }
}
