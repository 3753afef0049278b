// Prints which weights of every flavor a configuration converts, for comparison with torchtitan. The arguments are a
// job's command line; each line has family, flavor, name and recipe.
#include <iostream>

#include "common/plan/config/load.h"
#include "common/plan/config/low_precision.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"

int main(int argc, char** argv) {
  const auto loaded = titan::config::load_overrides(std::vector<std::string>(argv + 1, argv + argc));
  if (!loaded.ok()) {
    std::cerr << loaded.status().message() << "\n";
    return 2;
  }
  for (const std::string& name : titan::models::names()) {
    for (const std::string& flavor : titan::models::flavors(name)) {
      const titan::models::ModelSpec spec = *titan::models::find(name, flavor);
      std::vector<titan::models::ParameterSpec> tensors = titan::models::parameters(spec);
      // A tied head has no tensor in the list: its matrix is the embedding's.
      if (spec.tied_embeddings) tensors.push_back({"output.weight", {spec.vocab_size, spec.dim}});
      for (const titan::models::ParameterSpec& tensor : tensors) {
        const auto recipe = titan::config::low_precision_of(loaded->config, tensor.fqn, tensor.shape);
        if (!recipe) continue;
        std::cout << name << ' ' << flavor << ' ' << tensor.fqn << ' ' << titan::config::name(*recipe) << '\n';
      }
    }
  }
  return 0;
}
