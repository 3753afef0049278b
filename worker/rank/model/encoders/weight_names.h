#pragma once

#include <functional>
#include <string>
#include <vector>

namespace titan::encoders {

// How files name the tensors of one kind of encoder.
struct WeightNames {
  std::string model;  // The class whose weights they are, for messages: "T5EncoderModel".
  // Returns the names under which files may hold parameter `fqn`, in order of preference.
  std::function<std::vector<std::string>(const std::string& fqn)> candidates;
  // Beginnings of names that such files may have, too, for parts of a larger model that this encoder does not use.
  std::vector<std::string> unused;
};

}  // namespace titan::encoders
