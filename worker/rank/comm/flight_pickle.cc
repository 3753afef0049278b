#include "worker/rank/comm/flight_pickle.h"

#include "worker/rank/device/pickle_writer.h"

namespace titan::comm {
namespace {

// Of what the fields mean; the analyser wants the same in all files.
constexpr char kVersion[] = "2.10";
// The analyser drops what begins before the latest beginning of any rank. Marks mean the same on every rank, how many
// recordings lie between them need not.
constexpr int64_t kMostBetweenMarks = 1'000'000;

std::string as_python(const std::vector<int>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text + "]";
}

// Lists of one tensor.
void put_sizes(const RecordedTensor& tensor, device::PickleWriter& out) {
  out.list();
  out.list();
  for (int i = 0; i < tensor.dims; ++i) {
    out.integer(tensor.sizes[i]);
    out.append();
  }
  out.append();
}

void put_type(const RecordedTensor& tensor, device::PickleWriter& out) {
  out.list();
  out.text(c10::toString(tensor.type));
  out.append();
}

void put_time(int64_t ns, device::PickleWriter& out) {
  if (ns == 0) return out.none();
  out.integer(ns);
}

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

void put_entry(const Recording& recording, const RecordedGroup& group, device::PickleWriter& out) {
  out.dict();
  out.field("record_id", recording.mark * kMostBetweenMarks + recording.since_mark);
  out.field("pg_id", int64_t{recording.group});
  out.field("process_group", [&] {
    out.text(group.name);
    out.text(group.description);
    out.pair();
  });
  out.field("collective_seq_id", recording.sequence);
  out.field("p2p_seq_id", group.messages() ? recording.sequence : int64_t{0});
  out.field("op_id", recording.number);
  out.field("profiling_name", name_of(recording, group));
  out.field("time_created_ns", recording.created_ns);
  if (recording.progress == Progress::kCompleted) {
    out.field("duration_ms", static_cast<double>(recording.completed_ns - recording.started_ns) / 1e6);
  }
  out.field("input_sizes", [&] { put_sizes(recording.input, out); });
  out.field("input_dtypes", [&] { put_type(recording.input, out); });
  out.field("output_sizes", [&] { put_sizes(recording.output, out); });
  out.field("output_dtypes", [&] { put_type(recording.output, out); });
  out.field("state", state_of(recording.progress));
  out.field("time_discovered_started_ns", [&] { put_time(recording.started_ns, out); });
  out.field("time_discovered_completed_ns", [&] { put_time(recording.completed_ns, out); });
  out.field("retired", recording.waited);
  out.field("timeout_ms", int64_t{recording.timeout.count()});
  out.field("is_p2p", group.messages());
}

void put_configuration(const std::vector<RecordedGroup>& groups, device::PickleWriter& out) {
  out.dict();
  for (const RecordedGroup& group : groups) {
    out.field(group.name, [&] {
      out.dict();
      out.field("name", group.name);
      out.field("desc", group.description);
      out.field("ranks", as_python(group.ranks));
    });
  }
}

void put_status(const std::vector<RecordedGroup>& groups, device::PickleWriter& out) {
  out.dict();
  for (size_t i = 0; i < groups.size(); ++i) {
    out.field(std::to_string(i), [&] {
      out.dict();
      out.field("last_enqueued_collective", groups[i].last_issued);
      out.field("last_started_collective", groups[i].last_started);
      out.field("last_completed_collective", groups[i].last_completed);
    });
  }
}

}  // namespace

std::string to_pickle(const Flight& flight) {
  device::PickleWriter out;
  out.dict();
  out.field("version", kVersion);
  out.field("comm_lib_version", "Titan " TITAN_VERSION);
  out.field("pg_config", [&] { put_configuration(flight.groups, out); });
  out.field("pg_status", [&] { put_status(flight.groups, out); });
  out.field("entries", [&] {
    out.list();
    for (const Recording& recording : flight.recordings) {
      put_entry(recording, flight.groups[recording.group], out);
      out.append();
    }
  });
  return std::move(out).finish();
}

}  // namespace titan::comm
