// Runs encoders for encoders_oracle_test.py: run_encoders < CASES. CASES is a JSON list of objects:
//   kind     "t5", "clip", "encoder" or "decoder"
//   path     folder or file of the weights
//   dtype    "float32", "bfloat16" or "float64"
//   int8     true: matrices of linear layers in int8
//   inputs   safetensors with "ids", or "images" and "noise", or "latents"; empty: the weights are drawn from seed 7
//   output   safetensors for the results, or for the drawn weights
// Prints the FLOPs that cost.h states for one row of the inputs, one line for each case.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

#include "common/plan/encoders/config.h"
#include "common/plan/encoders/cost.h"
#include "nlohmann/json.hpp"
#include "tests/numerics/safetensors.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/model/encoders/autoencoder.h"
#include "worker/rank/model/encoders/autoencoder_files.h"
#include "worker/rank/model/encoders/clip_text.h"
#include "worker/rank/model/encoders/parameters.h"
#include "worker/rank/model/encoders/t5.h"

namespace {

using namespace titan;
using namespace titan::encoders;
using Tensors = std::map<std::string, at::Tensor>;

void check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T get(absl::StatusOr<T> value) {
  check(value.status());
  return *std::move(value);
}

// Narrow results are written in fp32.
void write(const std::string& path, Tensors tensors) {
  std::vector<checkpoint::TensorEntry> entries;
  for (auto& [key, value] : tensors) {
    if (value.scalar_type() == at::kBFloat16) value = value.to(at::kFloat);
    value = value.contiguous();
    entries.push_back({.key = key, .dtype = value.scalar_type(), .shape = value.sizes().vec()});
  }
  const checkpoint::Layout layout = get(checkpoint::layout(entries));
  std::string bytes(static_cast<size_t>(layout.file_bytes), '\0');
  layout.header.copy(bytes.data(), layout.header.size());
  for (const checkpoint::TensorEntry& entry : entries) {
    const at::Tensor& value = tensors.at(entry.key);
    std::memcpy(bytes.data() + entry.begin, value.const_data_ptr(), value.nbytes());
  }
  check(storage::atomic_write(storage::posix_files(), path, bytes));
}

at::ScalarType type_named(const std::string& name) {
  if (name == "bfloat16") return at::kBFloat16;
  return name == "float64" ? at::kDouble : at::kFloat;
}

// Loads or draws the parameters. Returns whether they were loaded; if drawn, writes them.
bool fill(const nlohmann::json& one, const std::vector<nn::Parameter*>& parameters, FrozenWeights* weights) {
  const Placement placement{.dtype = type_named(one.at("dtype"))};
  if (weights != nullptr) return check(load(*weights, parameters, placement)), true;
  check(draw(7, parameters, placement));
  Tensors drawn;
  for (const nn::Parameter* parameter : parameters) drawn[parameter->fqn] = parameter->weight;
  write(one.at("output"), drawn);
  return false;
}

double run_text(const nlohmann::json& one, const TextEncoder& encoder) {
  const std::string inputs = one.at("inputs");
  if (inputs.empty()) return fill(one, encoder.parameters(), nullptr), 0;
  FrozenWeights weights(get(open_weights(storage::posix_files(), one.at("path"))), encoder.names());
  fill(one, encoder.parameters(), &weights);
  const at::Tensor ids = titan::testing::read_safetensors(inputs).at("ids");
  write(one.at("output"), {{"result", encoder.encode(ids)}});
  return static_cast<double>(ids.size(1));
}

std::vector<nn::Parameter*> parameters_of(nn::Block& block) {
  std::vector<nn::Parameter*> all;
  for (nn::Parameter& parameter : block.parameters()) all.push_back(&parameter);
  return all;
}

double run_encoder(const nlohmann::json& one, const AutoencoderOptions& options, FrozenWeights* weights) {
  ImageEncoder encoder(options);
  if (!fill(one, parameters_of(encoder), weights)) return 0;
  Tensors inputs = titan::testing::read_safetensors(one.at("inputs"));
  const at::Tensor images = inputs.at("images").to(type_named(one.at("dtype")));
  const Moments moments = encoder.moments(images);
  write(one.at("output"),
        {{"mean", moments.mean}, {"logvar", moments.logvar}, {"latents", encoder.encode(images, inputs.at("noise"))}});
  return encoder_flops(options, images.size(2), images.size(3));
}

double run_decoder(const nlohmann::json& one, const AutoencoderOptions& options, FrozenWeights* weights) {
  ImageDecoder decoder(options);
  if (!fill(one, parameters_of(decoder), weights)) return 0;
  const at::Tensor latents = titan::testing::read_safetensors(one.at("inputs")).at("latents");
  const at::Tensor images = decoder.decode(latents.to(type_named(one.at("dtype"))));
  write(one.at("output"), {{"images", images}});
  return decoder_flops(options, images.size(2), images.size(3));
}

double run_autoencoder(const nlohmann::json& one) {
  const Half half = one.at("kind") == "encoder" ? Half::kEncoder : Half::kDecoder;
  const auto run = half == Half::kEncoder ? run_encoder : run_decoder;
  const std::string path = one.at("path");
  if (one.at("inputs") == "") {
    const nlohmann::json config = get(read_config(storage::posix_files(), path));
    return run(one, get(autoencoder_options(config)), nullptr);
  }
  auto files = get(open_weights(storage::posix_files(), path));
  const AutoencoderOptions options = get(autoencoder_options_at(storage::posix_files(), path, *files));
  FrozenWeights weights(std::move(files), autoencoder_names(options, half));
  return run(one, options, &weights);
}

// Returns the FLOPs of one row.
double run(const nlohmann::json& one) {
  const std::string kind = one.at("kind");
  if (kind == "encoder" || kind == "decoder") return run_autoencoder(one);
  const nlohmann::json config = get(read_config(storage::posix_files(), one.at("path")));
  if (kind == "t5") {
    const T5Options options = get(t5_options(config));
    const double tokens = run_text(one, build_t5(options, one.at("int8") ? WeightForm::kInt8 : WeightForm::kPlain));
    return text_flops(options, static_cast<int64_t>(tokens));
  }
  const ClipTextOptions options = get(clip_text_options(config));
  return text_flops(options, static_cast<int64_t>(run_text(one, build_clip_text(options))));
}

}  // namespace

int main() {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  for (const nlohmann::json& one : nlohmann::json::parse(text)) {
    try {
      std::printf("%.0f\n", run(one));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", one.dump().c_str(), error.what());
      return 1;
    }
  }
  return 0;
}
