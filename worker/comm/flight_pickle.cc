#include "worker/comm/flight_pickle.h"

#include <torch/csrc/jit/serialization/pickler.h>

namespace titan::comm {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

// Of what the fields mean; the analyser wants the same in all files.
constexpr char kVersion[] = "2.10";
// The analyser drops what begins before the latest beginning of any rank. Marks mean the same on every rank, how many
// recordings lie between them need not.
constexpr int64_t kMostBetweenMarks = 1'000'000;

Dict new_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }
List new_list() { return List(c10::AnyType::get()); }

std::string as_python(const std::vector<int>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text + "]";
}

List sizes_of(const RecordedTensor& tensor) {
  List sizes = new_list();
  for (int i = 0; i < tensor.dims; ++i) sizes.push_back(tensor.sizes[i]);
  List all = new_list();  // Of one tensor.
  all.push_back(sizes);
  return all;
}

List type_of(const RecordedTensor& tensor) {
  List all = new_list();
  all.push_back(c10::toString(tensor.type));
  return all;
}

c10::IValue time_of(int64_t ns) { return ns == 0 ? c10::IValue() : c10::IValue(ns); }

const char* state_of(Progress progress) {
  switch (progress) {
    case Progress::kScheduled:
      return "scheduled";
    case Progress::kStarted:
      return "started";
    case Progress::kCompleted:
      return "completed";
  }
  return "";
}

// The analyser takes names of NCCL and XCCL alone, whatever carried the operation.
std::string name_of(const Recording& recording, const RecordedGroup& group) {
  std::string name = std::string("nccl:") + recording.operation;
  if (!group.messages()) return name;
  const std::string from = std::to_string(group.source);
  const std::string to = std::to_string(group.destination);
  return name + " " + (recording.operation == std::string_view("send") ? from + "->" + to : to + "<-" + from);
}

Dict entry(const Recording& recording, const RecordedGroup& group) {
  Dict dict = new_dict();
  dict.insert("record_id", recording.mark * kMostBetweenMarks + recording.since_mark);
  dict.insert("pg_id", int64_t{recording.group});
  dict.insert("process_group", c10::ivalue::Tuple::create({group.name, group.description}));
  dict.insert("collective_seq_id", recording.sequence);
  dict.insert("p2p_seq_id", group.messages() ? recording.sequence : 0);
  dict.insert("op_id", recording.number);
  dict.insert("profiling_name", name_of(recording, group));
  dict.insert("time_created_ns", recording.created_ns);
  if (recording.progress == Progress::kCompleted) {
    dict.insert("duration_ms", static_cast<double>(recording.completed_ns - recording.started_ns) / 1e6);
  }
  dict.insert("input_sizes", sizes_of(recording.input));
  dict.insert("input_dtypes", type_of(recording.input));
  dict.insert("output_sizes", sizes_of(recording.output));
  dict.insert("output_dtypes", type_of(recording.output));
  dict.insert("state", state_of(recording.progress));
  dict.insert("time_discovered_started_ns", time_of(recording.started_ns));
  dict.insert("time_discovered_completed_ns", time_of(recording.completed_ns));
  dict.insert("retired", recording.waited);
  dict.insert("timeout_ms", int64_t{recording.timeout.count()});
  dict.insert("is_p2p", group.messages());
  return dict;
}

Dict configuration(const std::vector<RecordedGroup>& groups) {
  Dict all = new_dict();
  for (const RecordedGroup& group : groups) {
    Dict dict = new_dict();
    dict.insert("name", group.name);
    dict.insert("desc", group.description);
    dict.insert("ranks", as_python(group.ranks));
    all.insert(group.name, dict);
  }
  return all;
}

Dict status(const std::vector<RecordedGroup>& groups) {
  Dict all = new_dict();
  for (size_t i = 0; i < groups.size(); ++i) {
    Dict dict = new_dict();
    dict.insert("last_enqueued_collective", groups[i].last_issued);
    dict.insert("last_started_collective", groups[i].last_started);
    dict.insert("last_completed_collective", groups[i].last_completed);
    all.insert(std::to_string(i), dict);
  }
  return all;
}

}  // namespace

std::string to_pickle(const Flight& flight) {
  List entries = new_list();
  entries.reserve(flight.recordings.size());
  for (const Recording& recording : flight.recordings) {
    entries.push_back(entry(recording, flight.groups[recording.group]));
  }
  Dict whole = new_dict();
  whole.insert("version", kVersion);
  whole.insert("comm_lib_version", "Titan " TITAN_VERSION);
  whole.insert("pg_config", configuration(flight.groups));
  whole.insert("pg_status", status(flight.groups));
  whole.insert("entries", entries);

  std::string text;
  {
    torch::jit::Pickler pickler([&](const char* data, size_t size) { text.append(data, size); }, nullptr, nullptr,
                                nullptr, nullptr, /*tag_aggregates=*/false);
    pickler.protocol();
    pickler.pushIValue(whole);
    pickler.stop();
  }
  return text;
}

}  // namespace titan::comm
