#include "common/plan/models/flux.h"

#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/models/parameter_list.h"

namespace titan::models {
namespace {

void linear(ParameterList& list, const std::string& name, int64_t out, int64_t in) {
  list.linear(name, out, in, /*bias=*/true);
}

void two_layers(ParameterList& list, const std::string& name, int64_t in, int64_t out) {
  linear(list, absl::StrCat(name, ".in_layer"), out, in);
  linear(list, absl::StrCat(name, ".out_layer"), out, out);
}

void norms(ParameterList& list, const std::string& name, int64_t head_dim) {
  list.norm(absl::StrCat(name, ".query_norm"), head_dim);
  list.norm(absl::StrCat(name, ".key_norm"), head_dim);
}

void double_block(const FluxSpec& spec, const std::string& name, ParameterList& list) {
  for (const char* stream : {".img", ".txt"}) {
    const std::string prefix = absl::StrCat(name, stream);
    linear(list, absl::StrCat(prefix, "_mod.lin"), 6 * spec.dim, spec.dim);
    linear(list, absl::StrCat(prefix, "_attn.qkv"), 3 * spec.dim, spec.dim);
    norms(list, absl::StrCat(prefix, "_attn.norm"), spec.head_dim());
    linear(list, absl::StrCat(prefix, "_attn.proj"), spec.dim, spec.dim);
    linear(list, absl::StrCat(prefix, "_mlp.0"), spec.mlp_hidden(), spec.dim);
    linear(list, absl::StrCat(prefix, "_mlp.2"), spec.dim, spec.mlp_hidden());
  }
}

void single_block(const FluxSpec& spec, const std::string& name, ParameterList& list) {
  linear(list, absl::StrCat(name, ".modulation.lin"), 3 * spec.dim, spec.dim);
  linear(list, absl::StrCat(name, ".linear1"), 3 * spec.dim + spec.mlp_hidden(), spec.dim);
  norms(list, absl::StrCat(name, ".norm"), spec.head_dim());
  linear(list, absl::StrCat(name, ".linear2"), spec.dim, spec.dim + spec.mlp_hidden());
}

}  // namespace

ModelSpec flux_model(const FluxSpec& spec) {
  ModelSpec model;
  model.name = spec.name;
  model.flavor = spec.flavor;
  model.dim = spec.dim;
  model.n_layers = spec.n_double_blocks + spec.n_single_blocks;
  model.n_heads = model.n_kv_heads = spec.n_heads;
  model.head_dim = model.v_head_dim = spec.head_dim();
  model.ffn_hidden = spec.mlp_hidden();
  model.rope_theta = spec.rope_theta;
  model.flux = spec;
  return model;
}

absl::Status check(const FluxSpec& spec) {
  const auto bad = [&](const auto&... words) {
    return absl::InvalidArgumentError(absl::StrCat("model ", spec.name, ", flavor ", spec.flavor, ": ", words...));
  };
  for (const auto& [name, number] : {std::pair("dim", spec.dim),
                                     {"n_heads", spec.n_heads},
                                     {"mlp_ratio", spec.mlp_ratio},
                                     {"in_channels", spec.in_channels},
                                     {"txt_width", spec.txt_width},
                                     {"vec_width", spec.vec_width},
                                     {"time_channels", spec.time_channels}}) {
    if (number <= 0) return bad(name, " is ", number, ", it must be positive");
  }
  if (spec.n_double_blocks < 0 || spec.n_single_blocks < 0) {
    return bad("n_double_blocks is ", spec.n_double_blocks, " and n_single_blocks ", spec.n_single_blocks,
               ", they must not be negative");
  }
  if (spec.dim % spec.n_heads != 0) return bad("n_heads ", spec.n_heads, " does not divide dim ", spec.dim);
  if (spec.time_channels % 2 != 0) return bad("time_channels is ", spec.time_channels, ", it must be even");
  for (const int64_t channels : spec.axes_dim) {
    if (channels <= 0 || channels % 2 != 0) return bad("axes_dim has ", channels, ", all must be positive and even");
  }
  const int64_t sum = std::accumulate(spec.axes_dim.begin(), spec.axes_dim.end(), int64_t{0});
  if (sum != spec.head_dim()) {
    return bad("the sum of axes_dim is ", sum, ", a head of dim / n_heads has ", spec.head_dim(), " channels");
  }
  if (!(spec.rope_theta > 0)) return bad("rope_theta is ", spec.rope_theta, ", it must be positive");
  return absl::OkStatus();
}

std::vector<ParameterSpec> parameters(const FluxSpec& spec) {
  ParameterList list;
  linear(list, "img_in", spec.dim, spec.in_channels);
  linear(list, "txt_in", spec.dim, spec.txt_width);
  two_layers(list, "time_in", spec.time_channels, spec.dim);
  two_layers(list, "vector_in", spec.vec_width, spec.dim);
  if (spec.guidance_embed) two_layers(list, "guidance_in", spec.time_channels, spec.dim);
  for (int64_t i = 0; i < spec.n_double_blocks; ++i) double_block(spec, absl::StrCat("double_blocks.", i), list);
  for (int64_t i = 0; i < spec.n_single_blocks; ++i) single_block(spec, absl::StrCat("single_blocks.", i), list);
  linear(list, "final_layer.adaLN_modulation.1", 2 * spec.dim, spec.dim);
  linear(list, "final_layer.linear", spec.in_channels, spec.dim);
  return list.take();
}

int64_t parameter_count(const FluxSpec& spec) { return parameter_count(flux_model(spec)); }

std::vector<std::string> block_names(const FluxSpec& spec) {
  std::vector<std::string> names{"embed"};
  for (int64_t i = 0; i < spec.n_double_blocks; ++i) names.push_back(absl::StrCat("double_blocks.", i));
  for (int64_t i = 0; i < spec.n_single_blocks; ++i) names.push_back(absl::StrCat("single_blocks.", i));
  names.push_back("final_layer");
  return names;
}

std::string flux_block_of(const std::string& fqn) {
  for (const std::string prefix : {"double_blocks.", "single_blocks."}) {
    if (fqn.rfind(prefix, 0) == 0) return fqn.substr(0, fqn.find('.', prefix.size()));
  }
  return fqn.rfind("final_layer.", 0) == 0 ? "final_layer" : "embed";
}

std::vector<BlockSize> block_sizes(const FluxSpec& spec) { return block_sizes(flux_model(spec)); }

int64_t flops_per_sample(const FluxSpec& spec, int64_t txt, int64_t img) {
  const int64_t square = spec.dim * spec.dim, tokens = txt + img;
  const int64_t doubles = spec.n_double_blocks, singles = spec.n_single_blocks;
  // A token passes one of the two streams of a double block.
  const int64_t read = parameter_count(spec) - doubles * square * (4 + 2 * spec.mlp_ratio);
  const int64_t modulations = square * (12 * doubles + 3 * singles + 2);
  return 6 * read * tokens - 6 * modulations * (tokens - 1) + 6 * spec.dim * tokens * tokens * (doubles + singles);
}

std::vector<double> block_flops(const FluxSpec& spec, int64_t txt, int64_t img) {
  const int64_t dim = spec.dim, mlp = spec.mlp_hidden(), tokens = txt + img;
  const int64_t vectors = (spec.guidance_embed ? 2 : 1) * (spec.time_channels + dim) + spec.vec_width + dim;
  const int64_t attention = 4 * tokens * tokens * dim;
  const auto flops = [](int64_t count) { return static_cast<double>(count); };
  std::vector<double> blocks{flops(2 * dim * (img * spec.in_channels + txt * spec.txt_width + vectors))};
  blocks.insert(blocks.end(), static_cast<size_t>(spec.n_double_blocks),
                flops(2 * dim * (12 * dim + tokens * (4 * dim + 2 * mlp)) + attention));
  blocks.insert(blocks.end(), static_cast<size_t>(spec.n_single_blocks),
                flops(2 * dim * (3 * dim + tokens * (4 * dim + 2 * mlp)) + attention));
  blocks.push_back(flops(2 * dim * (2 * dim + img * spec.in_channels)));
  return blocks;
}

std::optional<int64_t> flux_tensor_dim(const std::string& fqn) {
  const auto is = [&](const char* layer, const char* part) { return absl::EndsWith(fqn, absl::StrCat(layer, part)); };
  for (const char* layer : {"_attn.qkv", "_mlp.0", ".linear1"}) {
    if (is(layer, ".weight") || is(layer, ".bias")) return 0;
  }
  for (const char* layer : {"_mod.lin", ".modulation.lin", "adaLN_modulation.1"}) {
    if (is(layer, ".weight")) return 0;  // All ranks gather the outputs, then each adds the whole bias.
  }
  for (const char* layer : {"_attn.proj", "_mlp.2", ".linear2"}) {
    if (is(layer, ".weight")) return 1;
  }
  return std::nullopt;
}

mesh::Sizes split_sizes(const FluxSpec& spec) {
  mesh::Sizes sizes;
  sizes.n_heads = spec.n_heads;
  sizes.ffn_hidden = spec.mlp_hidden();
  sizes.sequence_parallel = false;
  return sizes;
}

absl::Status check_context(int64_t txt, int64_t img, int64_t ranks) {
  for (const auto& [what, tokens] : {std::pair("text", txt), {"image", img}}) {
    if (tokens % ranks == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("parallelism.context_parallel_degree: ", ranks,
                                                   " does not divide the ", tokens, " tokens of the ", what));
  }
  return absl::OkStatus();
}

}  // namespace titan::models
