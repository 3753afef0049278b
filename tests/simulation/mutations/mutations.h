#pragma once

// Mutations of the controller's and the worker's sources, which show whether the simulation finds the resulting bugs.
// Only the libraries *_mutated have them: apply.py writes their sources as copies of the product's, with each mutation
// guarded by mutated(). Only test programs link those.

#include <string_view>
#include <vector>

namespace titan::simulation {

struct Mutation {
  std::string_view name;
  std::string_view what;  // A clause that says what the mutated program does.
};

// Returns the mutations of all *.toml files, in the order of the files.
std::vector<Mutation> mutations();

// Name of the active mutation of the whole process; empty if none is active.
inline std::string_view active_mutation;

inline bool mutated(std::string_view name) { return name == active_mutation; }

}  // namespace titan::simulation
