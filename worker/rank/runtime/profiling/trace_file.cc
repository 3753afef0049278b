#include "worker/rank/runtime/profiling/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace titan::runtime {
namespace {

using nlohmann::json;

constexpr int64_t kFirstRow = 1'000'000'000;            // Above the number of any thread of the system.
constexpr int64_t kFirstExternalId = int64_t{1} << 40;  // Above the ids of LibTorch's events.
constexpr std::string_view kEndOfEvents = "\n  ],\n";
constexpr std::string_view kBase = "\"baseTimeNanoseconds\":";

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// Makes events of one process. Times in a trace are microseconds since the trace's base.
class Events {
 public:
  explicit Events(int64_t base_ns) : base_ns_(base_ns), process_(getpid()) {}

  void add_row(int64_t row, const std::string& name) {
    events_.push_back(
        {{"ph", "M"}, {"name", "thread_name"}, {"pid", process_}, {"tid", row}, {"args", {{"name", name}}}});
    events_.push_back(
        {{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", process_}, {"tid", row}, {"args", {{"sort_index", row}}}});
  }
  void add(int64_t row, const char* category, const std::string& name, int64_t begin_ns, int64_t end_ns, json args) {
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", process_},
                       {"tid", row},
                       {"ts", microseconds(begin_ns - base_ns_)},
                       {"dur", microseconds(end_ns - begin_ns)},
                       {"args", std::move(args)}});
  }
  std::string text() const {
    std::string text;
    for (const json& event : events_) absl::StrAppend(&text, ",\n  ", event.dump());
    return text;
  }

 private:
  const int64_t base_ns_;
  const int64_t process_;
  std::vector<json> events_;
};

// Events of one row must not overlap unless one contains the other.
void add_transfers(std::vector<trace::Transfer> transfers, const TraceOwner& owner, Events& events) {
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const auto& one, const auto& other) { return one.begin_ns < other.begin_ns; });
  struct Row {
    int64_t number = 0, free_ns = 0;
  };
  std::map<std::string, std::vector<Row>> rows;  // By axis.
  int64_t next_row = kFirstRow, next_id = kFirstExternalId;
  for (const trace::Transfer& transfer : transfers) {
    std::vector<Row>& of_axis = rows[transfer.axis];
    auto row = std::find_if(of_axis.begin(), of_axis.end(),
                            [&](const Row& known) { return known.free_ns <= transfer.begin_ns; });
    if (row == of_axis.end()) {
      row = of_axis.insert(row, {.number = next_row++});
      events.add_row(row->number, absl::StrCat("collectives ", transfer.axis,
                                               of_axis.size() > 1 ? absl::StrCat(" (", of_axis.size(), ")") : ""));
    }
    row->free_ns = transfer.end_ns;
    events.add(row->number, "user_annotation", absl::StrCat(owner.backend, ":", transfer.operation), transfer.begin_ns,
               transfer.end_ns,
               {{"External id", next_id++},
                {"axis", transfer.axis},
                {"ranks", transfer.ranks},
                {"bytes", transfer.bytes},
                {"issuing us", microseconds(transfer.issued_ns - transfer.begin_ns)},
                {"issued to wait us", microseconds(transfer.wait_ns - transfer.issued_ns)},
                {"waiting us", microseconds(transfer.waited_ns - transfer.wait_ns)},
                {"Input Dims", {{transfer.bytes}}},
                {"Input type", {"unsigned char"}}});
  }
}

void add_works(const trace::RecordedSpans& recorded, Events& events) {
  std::set<int64_t> named = {recorded.thread_id};  // LibTorch has already named it.
  for (const trace::ThreadSpan& work : recorded.works) {
    if (named.insert(work.thread_id).second) events.add_row(work.thread_id, work.thread);
    events.add(work.thread_id, "background", work.name, work.begin_ns, work.end_ns, json::object());
  }
}

// Reads the base, which precedes the first event.
absl::StatusOr<int64_t> base_time(std::istream& file) {
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  file.clear();
  const size_t at = head.find(kBase);
  int64_t base = 0;
  if (at == std::string::npos ||
      !absl::SimpleAtoi(head.substr(at + kBase.size(), head.find(',', at) - at - kBase.size()), &base)) {
    return absl::UnavailableError("the profiler's trace has no base time");
  }
  return base;
}

}  // namespace

absl::Status add_to_trace(const std::string& path, const trace::RecordedSpans& recorded, const TraceOwner& owner) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  if (!file) return absl::UnavailableError(absl::StrCat(path, " cannot be opened"));
  const absl::StatusOr<int64_t> base = base_time(file);
  if (!base.ok()) return base.status();
  file.seekg(0, std::ios::end);
  const auto size = static_cast<int64_t>(file.tellg());
  const int64_t place = std::max<int64_t>(0, size - 65536);
  std::string tail(static_cast<size_t>(size - place), '\0');
  file.seekg(place);
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  const size_t end = tail.rfind(kEndOfEvents);
  if (!file || end == std::string::npos) {
    return absl::UnavailableError(absl::StrCat(path, ": the profiler's trace is incomplete"));
  }
  Events events(*base);
  add_transfers(recorded.transfers, owner, events);
  add_works(recorded, events);
  const json whose = {{"backend", owner.backend}, {"rank", owner.rank}, {"world_size", owner.world}};
  file.seekp(place + static_cast<int64_t>(end));
  file << events.text() << kEndOfEvents << "  \"distributedInfo\": " << whose.dump() << ",\n"
       << std::string_view(tail).substr(end + kEndOfEvents.size());
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, " could not be written completely; is the disk full?"));
  return absl::OkStatus();
}

}  // namespace titan::runtime
