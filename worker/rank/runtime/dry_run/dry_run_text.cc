#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/rank/runtime/dry_run/dry_run.h"

namespace titan::runtime {
namespace {

using nlohmann::ordered_json;

std::string amount(int64_t bytes) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return absl::StrFormat("%15d  %9.3f GiB", bytes, static_cast<double>(bytes) / kGiB);
}

std::string place(const ordered_json& result) {
  std::string text =
      absl::StrFormat("Dry run of rank %d of %d (%s %s) at", result["rank"].get<int>(), result["world"].get<int>(),
                      result["model"].get<std::string>(), result["flavor"].get<std::string>());
  for (const auto& [axis, index] : result["coordinate"].items())
    absl::StrAppend(&text, " ", axis, "=", index.get<int>());
  return text + "\n";
}

std::string memory(const ordered_json& result) {
  const auto& parameters = result["parameters"];
  std::string text = absl::StrFormat("parameters: %d in the model, %d used by this rank, %d stored by it\n",
                                     parameters["model"].get<int64_t>(), parameters["here"].get<int64_t>(),
                                     parameters["shard"].get<int64_t>());
  absl::StrAppend(&text, "bytes of this rank:\n");
  for (const auto& [name, bytes] : result["bytes"].items())
    absl::StrAppendFormat(&text, "  %-12s %s\n", name, amount(bytes.get<int64_t>()));
  if (result["shards_on_host"].get<bool>())
    absl::StrAppend(&text,
                    "  standing and peak include parameters, gradients and optimizer states that are in host memory\n");
  absl::StrAppend(&text, "saved per microbatch until its backward pass:\n");
  for (const auto& [stage, bytes] : result["activations"].items())
    absl::StrAppendFormat(&text, "  %-12s %s\n", absl::StrCat("stage ", stage), amount(bytes.get<int64_t>()));
  return text;
}

std::string work(const ordered_json& result) {
  std::string text = "FLOPs of one step:\n";
  for (const auto& [name, count] : result["flops"].items()) {
    if (count.get<int64_t>() == 0) continue;
    absl::StrAppendFormat(&text, "  %-12s %15.6e\n", name, static_cast<double>(count.get<int64_t>()));
  }
  return text;
}

std::string traffic(const ordered_json& result) {
  std::string text = "collectives of one step:\n";
  for (const auto& [name, entry] : result["collectives"].items()) {
    absl::StrAppendFormat(&text, "  %-28s %7d calls %s\n", name, entry["calls"].get<int64_t>(),
                          amount(entry["bytes"].get<int64_t>()));
  }
  return text;
}

std::string order_of_work(const ordered_json& schedule) {
  if (schedule["ranks"].get<int>() == 1) {
    const int runs = schedule["runs"].get<int>();
    return runs == 1 ? "no pipeline: forward and backward once a step\n"
                     : absl::StrFormat("no pipeline: forward and backward %d times a step\n", runs);
  }
  const int runs = schedule["runs"].get<int>();
  return absl::StrCat(runs == 1 ? "" : absl::StrFormat("%d times a step: ", runs), schedule["text"].get<std::string>());
}

}  // namespace

std::string describe_dry_run(const ordered_json& result) {
  return place(result) + memory(result) + work(result) + traffic(result) + order_of_work(result["schedule"]) +
         absl::StrFormat("took %.2f s\n", result["seconds"].get<double>());
}

}  // namespace titan::runtime
