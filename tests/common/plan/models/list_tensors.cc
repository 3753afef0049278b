// Prints every tensor of every flavor for comparison with torchtitan: family, flavor, name and shape, one per line.
#include <iostream>

#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"

int main() {
  for (const std::string& name : titan::models::names()) {
    for (const std::string& flavor : titan::models::flavors(name)) {
      for (const titan::models::ParameterSpec& tensor : titan::models::parameters(*titan::models::find(name, flavor))) {
        std::cout << name << ' ' << flavor << ' ' << tensor.fqn;
        for (int64_t size : tensor.shape) std::cout << ' ' << size;
        std::cout << '\n';
      }
    }
  }
}
