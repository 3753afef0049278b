#pragma once

// The weights of a graph: which parameters of a step they hold, in which layout, and where in the data file.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_graph.h"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::checkpoint::onnx {

inline constexpr int64_t kAlignment = 4096;  // Tensors begin at pages, so that a runtime can map them.

// The layout of a weight.
enum class Form {
  kSame,
  kTransposed,  // The last two dims are swapped: MatMul reads [in, out].
  kAlternate,   // Rows of two parameters [E, F, D] alternate, [E, 2F, D]: gates and ups of experts.
};

struct Weight {
  std::string name;
  Type type = Type::kFloat;
  Form form = Form::kSame;
  std::vector<int64_t> dims;
  std::vector<const TensorRecord*> records;  // The parameters; none if `value` is set.
  at::Tensor value;                          // [dims...], computed by the export.
};

// Collects the weights that a graph uses, in the order of their first use.
class Weights {
 public:
  explicit Weights(const Manifest& manifest) : manifest_(manifest) {}

  // Returns whether the step has the parameter or buffer `fqn`.
  bool has(const std::string& fqn) const { return manifest_.find("model." + fqn) != nullptr; }
  // Return the name of a weight in the graph, which is that of its first parameter. Throw c10::Error if the step lacks
  // the parameter or the weight was added in another form.
  std::string add(const std::string& fqn, Type type, Form form = Form::kSame);
  std::string add_alternate(const std::string& even, const std::string& odd, Type type);
  // Adds a computed weight [...] under its own name, once.
  std::string add_value(const std::string& name, const at::Tensor& value, Type type);

  // Returns the model's parameters and buffers that no weight holds.
  std::vector<std::string> unused() const;
  const std::vector<Weight>& all() const { return all_; }

 private:
  const TensorRecord* record_of(const std::string& fqn);
  std::string append(Weight weight);

  const Manifest& manifest_;
  std::vector<Weight> all_;
  std::map<std::string, size_t> index_;  // By name.
  std::set<std::string> used_;           // Keys of the step.
};

// Returns the places of weights in the data file, one after another, each aligned.
std::vector<External> places(const std::vector<Weight>& weights);

struct DataOptions {
  Overflow overflow = Overflow::kRefuse;
  int64_t max_piece_bytes = int64_t{256} << 20;  // Bytes converted at once.
};

// Writes the data file `path` and flushes it to the disk. Tensors are read and converted in pieces; a transposed matrix
// is read as a whole, so the largest matrix of the model must fit into memory. Appends warnings about values. Errors:
// those of reading and writing; OutOfRange, names a tensor with values beyond its type.
absl::Status write_data(storage::Files& files, StepReader& step, const std::vector<Weight>& weights,
                        const DataOptions& options, const std::string& path,
                        const std::function<void(const std::string& tensor)>& progress,
                        std::vector<std::string>& warnings);

}  // namespace titan::checkpoint::onnx
