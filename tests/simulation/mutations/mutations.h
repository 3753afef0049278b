#pragma once

// Mutations of the controller's and the worker's sources, which show whether the simulation finds the bugs that they
// make. Only the libraries *_mutated have them: apply.py writes their sources, copies of the product's in which each
// mutation is guarded by mutated(). Only test programs link those.

#include <string_view>
#include <vector>

namespace titan::simulation {

struct Mutation {
  std::string_view name;
  std::string_view what;  // A clause: what the mutated program does.
};

// All of the files *.toml, in their order.
std::vector<Mutation> mutations();

// The name of the one that is active in the whole process; empty: none.
inline std::string_view active_mutation;

inline bool mutated(std::string_view name) { return name == active_mutation; }

}  // namespace titan::simulation
