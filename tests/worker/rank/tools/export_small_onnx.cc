// Exports small models with all features of their families as ONNX, for onnx_export_test.py.
//   export_small_onnx FOLDER MODEL/DTYPE/OPERATORS/OPSET...: for each MODEL writes FOLDER/MODEL/step-0 with random
//   weights, and tokens [rows, length] with their logits [rows, length, vocabulary] as FOLDER/MODEL/batch.safetensors;
//   and exports that step to FOLDER/MODEL/DTYPE-OPERATORS-OPSET. OPSET 0 is the default. The vocabulary of a
//   MODEL_large repeats that of MODEL, whose tokens and logits it has, until the embedding has 2 GiB.
//   export_small_onnx: prints the names of the models.

#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/plan/models/spec_checks.h"
#include "tests/worker/rank/model/hf_weights.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/tools/offline.h"

namespace titan {
namespace {

using testing::need;
using testing::part_of;
using testing::SmallModel;

constexpr int64_t kRows = 2, kLength = 40;
constexpr int64_t kLargeBytes = int64_t{2} << 30;

SmallModel small_model(absl::string_view what) {
  const std::vector<SmallModel> all = testing::small_models();
  const auto found = std::find_if(all.begin(), all.end(), [&](const SmallModel& one) { return one.what == what; });
  TORCH_CHECK(found != all.end(), "no small model is named ", what);
  SmallModel model = *found;
  model.spec.max_seq_len = model.seq_len = kLength;
  if (what == "deepseek_yarn") {  // GroupQueryAttention has heads of a multiple of 8.
    model.spec.qk_nope_head_dim = 12;
    model.spec.head_dim = 16;
  }
  return model;
}

// Registers a family with the model as its one flavor, by which the export finds it.
models::ModelSpec registered(models::ModelSpec spec, const std::string& what) {
  model::Family family = *model::find_family(spec.name);
  family.name = spec.name = absl::StrCat("small_", what);
  family.flavors = {spec};
  need(model::add_family(std::move(family)));
  return spec;
}

// Writes the model as a step. Its embedding is repeated as often as the vocabulary of `spec` needs.
void write_step(const model::Model& model, const models::ModelSpec& spec, const std::string& folder) {
  storage::Files& files = storage::posix_files();
  std::vector<checkpoint::Staged> parts;
  for (const auto& block : model.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      const at::Tensor value = parameter.weight.detach();
      const bool embedding = parameter.fqn == "tok_embeddings.weight";
      const int64_t times = embedding ? spec.vocab_size / value.size(0) : 1;
      parts.push_back(part_of("model." + parameter.fqn, times > 1 ? value.repeat({times, 1}) : value));
    }
    for (const nn::Buffer& buffer : block->buffers()) parts.push_back(part_of("model." + buffer.fqn, buffer.value));
  }
  need(files.make_folders(folder));
  checkpoint::Manifest manifest{.step = 7, .full = false, .attempt = 1, .job_uid = "small", .world = 1};
  manifest.model = models::to_json(spec);
  need(checkpoint::complete({need(checkpoint::write_shard(files, folder, {1, 0}, parts))}, manifest));
  manifest.per_rank = {nullptr};
  need(storage::atomic_write(files, storage::join_path(folder, checkpoint::kManifestName), to_text(manifest)));
}

void make(const std::string& what, const std::string& folder) {
  at::NoGradGuard no_grad;
  absl::string_view like = what;
  const bool large = absl::ConsumeSuffix(&like, "_large");
  const SmallModel small = small_model(like);
  models::ModelSpec spec = small.spec;
  if (large) spec.vocab_size *= kLargeBytes / (spec.vocab_size * spec.dim * int64_t{sizeof(float)}) + 1;
  const model::Model model = need(model::build(small.spec, {.seq_len = small.seq_len}));
  testing::set_weights(model, testing::draw_weights(model, small.spec, /*seed=*/5), at::kFloat);
  write_step(model, registered(spec, what), folder + "/step-0");
  const nn::MicrobatchContext context{.tokens = at::randint(small.spec.vocab_size, {kRows, kLength}, at::kLong)};
  at::Tensor x = model.input(context);
  for (const auto& block : model.blocks) x = block->forward(x, context);
  need(checkpoint::write_tensors(storage::posix_files(), folder, "batch.safetensors",
                                 {part_of("tokens", context.tokens), part_of("logits", x)}));
}

void run(const std::string& folder, const std::vector<std::string>& exports) {
  std::set<std::string> made;
  for (const std::string& one : exports) {
    const std::vector<std::string> words = absl::StrSplit(one, '/');
    TORCH_CHECK(words.size() == 4, "not MODEL/DTYPE/OPERATORS/OPSET: ", one);
    const std::string place = folder + "/" + words[0];
    if (made.insert(words[0]).second) make(words[0], place);
    tools::ExportOptions options{.dtype = words[1], .format = "onnx", .onnx_operators = words[2]};
    TORCH_CHECK(absl::SimpleAtoi(words[3], &options.onnx_opset), "not a number: ", words[3]);
    need(tools::export_step(storage::posix_files(), place + "/step-0",
                            absl::StrCat(place, "/", words[1], "-", words[2], "-", words[3]), {}, options, std::cout));
  }
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& model : titan::testing::small_models()) std::cout << model.what << "\n";
    return 0;
  }
  try {
    titan::run(argv[1], {argv + 2, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
