#include "common/rank_protocol/rank_exit.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace titan::rank_protocol {
namespace {

using nlohmann::json;

// Keeps a record within the blocks that the shim reserves for it in exits.jsonl.
constexpr size_t kMessageBytes = 2048;

}  // namespace

json exit_to_json(const RankExit& exit) {
  return {{"rank", exit.rank},
          {"pid", exit.pid},
          {"start_ticks", exit.start_ticks},
          {"exit_code", exit.exit_code},
          {"signal", exit.signal},
          {"out_of_memory", exit.out_of_memory},
          {"memory_limit_bytes", exit.memory_limit_bytes},
          {"last_words", exit.message.substr(0, kMessageBytes)},
          {"stop_reason", exit.stop_reason},
          {"time", exit.time_ns}};
}

absl::StatusOr<RankExit> exit_from_json(const json& from) {
  try {
    RankExit exit;
    exit.rank = from.at("rank").get<int>();
    exit.pid = from.value("pid", 0);
    exit.start_ticks = from.value("start_ticks", int64_t{0});
    exit.exit_code = from.at("exit_code").get<int>();
    exit.signal = from.at("signal").get<int>();
    exit.out_of_memory = from.value("out_of_memory", false);
    exit.memory_limit_bytes = from.value("memory_limit_bytes", int64_t{0});
    exit.message = from.value("last_words", "");
    exit.stop_reason = from.value("stop_reason", "");
    exit.time_ns = from.value("time", int64_t{0});
    return exit;
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("exit record: ", error.what()));
  }
}

}  // namespace titan::rank_protocol
