// Compares one training step of Titan's models with the record of their oracles (tests/peer/one_step.py), in one
// process: logits, every parameter's gradient and every token's routing, the same in bfloat16 by every level of kernels
// that the machine has (--bfloat16), and (--calls) the number of operations.
//   compare_with_peer CASE_FOLDER... [--noise] [--bfloat16] [--calls]
// --noise tests the test: the comparison must fail for each weight tensor with 1e-3 of noise, for each changed number
// of the model, and without the permutation of queries and keys. Prints one JSON line per check; exits with 1 if a
// check fails.

#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

#include "tests/numerics/golden_case.h"
#include "tests/numerics/golden_report.h"
#include "tests/numerics/spec_changes.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/model/hf_names.h"

namespace titan::testing {
namespace {

constexpr double kNoise = 1e-3;  // Relative to the tensor's rms.

// Compares the exported config.json with the one that transformers got, for keys that both have.
void compare_config(const GoldenCase& golden, Reporter& reporter) {
  const nlohmann::json& theirs = golden.about().at("config");
  if (theirs.is_null()) return;
  const int64_t seq_len = golden.tokens().size(1);
  const nlohmann::json ours = model::make_hf_mapper(golden.spec(), seq_len).value()->config();
  for (const auto& [key, value] : theirs.items()) {
    if (!ours.contains(key)) reporter.missing("config.json", "no " + key);
    if (!value.is_object()) {
      if (ours.contains(key) && ours[key] != value) reporter.missing("config.json", key + " is " + ours[key].dump());
      continue;
    }
    for (const auto& [name, number] : value.items()) {
      if (ours.value(key, nlohmann::json::object()).value(name, nlohmann::json()) != number) {
        reporter.missing("config.json", key + "." + name + " is not " + number.dump());
      }
    }
  }
}

void disturb(GoldenCase& golden, Reporter& reporter) {
  for (const std::string& fqn : golden.names()) {
    golden.with_noise(fqn, kNoise, [&] { reporter.report("noise in " + fqn, golden.run_disturbed(), false); });
  }
  reporter.report("noise removed", golden.run(), true);
  for (const Mistake& mistake : mistakes(golden.spec(), golden.tokens().size(1))) {
    golden.build(mistake.spec);
    reporter.report(mistake.what, golden.run_disturbed(), false);
  }
  if (golden.spec().name != "llama3") return;  // The only family with permuted weights.
  golden.build(golden.spec(), /*permute=*/false);
  reporter.report("no permutation", golden.run_disturbed(), false);
}

// A machine has all levels up to its best. LibTorch's own operations set the standard for the kernels. Weights are
// bfloat16 afterwards.
void compare_rounded(GoldenCase& golden, Reporter& reporter) {
  golden.build(golden.rounded_spec());
  golden.cast(at::kBFloat16);
  for (const char* by : {"reference", "avx2", "avx512", "avx512bf16", "amx"}) {
    if (kernels::choose(by)) reporter.rounded(by, golden.run_rounded());
  }
  kernels::choose("reference");
}

// Must be the golden case's last use: its weights are bfloat16 afterwards.
void count_calls(GoldenCase& golden, Reporter& reporter) {
  nlohmann::json counted;
  golden.build(golden.spec());
  counted["float32"] = golden.count_calls();
  golden.cast(at::kBFloat16);
  counted["bfloat16"] = golden.count_calls();
  kernels::choose("auto");
  if (kernels::chosen_level()) counted["kernels"] = golden.count_calls();
  kernels::choose("reference");
  reporter.calls(counted);
}

int main(const std::vector<std::string>& arguments) {
  torch::manual_seed(1);
  bool noise = false, rounded = false, calls = false, good = true;
  std::vector<std::string> folders;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--noise") {
      noise = true;
    } else if (arguments[i] == "--bfloat16") {
      rounded = true;
    } else if (arguments[i] == "--calls") {
      calls = true;
    } else {
      folders.push_back(arguments[i]);
    }
  }
  if (folders.empty())
    throw std::invalid_argument("usage: compare_with_peer CASE_FOLDER... [--noise] [--bfloat16] [--calls]");
  for (const std::string& folder : folders) {
    GoldenCase golden(folder);
    Reporter reporter(golden.about().at("case"));
    reporter.report("as it is", golden.run(), true);
    compare_config(golden, reporter);
    if (noise) disturb(golden, reporter);
    if (rounded) compare_rounded(golden, reporter);
    if (calls) count_calls(golden, reporter);
    good &= reporter.good();
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace titan::testing

int main(int argc, char** argv) {
  try {
    return titan::testing::main(std::vector<std::string>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "compare_with_peer: " << error.what() << std::endl;
    return 2;
  }
}
