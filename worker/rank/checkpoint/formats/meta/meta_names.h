#pragma once

// States where a parameter stands in Meta's own weights (consolidated.NN.pth) and along which dim the files cut it. The
// names and cuts are those that llama-models reads (models/checkpoint.py, models/llama4); Mistral uses Llama 2's.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"

namespace titan::checkpoint {

// Along which dim of the stored tensor the files of a series cut it.
enum class MetaCut {
  kNone,  // Every file has a copy.
  kRows,
  kColumns,
  kEither,  // Embeddings: Llama 3's by rows, Llama 2's by columns. Their shape shows it.
};

struct MetaPlace {
  std::string name;  // "layers.0.attention.wq.weight"
  MetaCut cut = MetaCut::kRows;
  // The last two dims are swapped. Experts are then stacked along the rows: [experts * columns, rows] of each.
  bool transposed = false;
  // Rows of other parameters before and after this one in the uncut tensor, where several are stored as one. Each file
  // has a slice of every one of them.
  int64_t rows_before = 0, rows_after = 0;
  bool repeats_heads = false;  // A series of more files than key-value heads stores each head more than once.
};

// Returns the places where a release may hold parameter `fqn`, of which it has one. Empty: releases do not hold it.
std::vector<MetaPlace> meta_places(const models::ModelSpec& spec, const std::string& fqn);

// Whether a release may have the entry although training does not use it: rotary tables, statistics of routers, states
// of other libraries, and Llama 4's vision tower.
bool is_unused_in_meta(const models::ModelSpec& spec, const std::string& name);
// Whether the entry is not a tensor, but an object of another library.
bool is_object_in_meta(const std::string& name);

}  // namespace titan::checkpoint
