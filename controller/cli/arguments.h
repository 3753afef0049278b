#pragma once

#include <string>
#include <vector>

namespace titan::cli {

// The command line in two parts: configuration keys ("--training.steps 10", "--training.steps=10",
// "--checkpoint.enable") and the rest. A key's value is the next word unless that is a flag ("--wait", "-q"). Until a
// file was named, a word that ends in .toml, .yaml, .yml or .json is the file, not a value. torchtitan's
// "--job.config_file FILE" means FILE.
struct CommandLine {
  std::vector<std::string> words;      // The rest, without the program's name.
  std::vector<std::string> overrides;  // In order, in the form that common/plan/config reads.
};

CommandLine split_arguments(int argc, const char* const* argv);

}  // namespace titan::cli
