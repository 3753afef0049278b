#include "worker/rank/comm/flight_pickle.h"

#include "worker/rank/pickle/writer.h"

namespace titan::comm {
namespace {

// Version of the fields' meaning; the analyser requires the same in all files.
constexpr char kVersion[] = "2.10";
// The analyser drops entries that begin before the latest first entry of any rank. Marks mean the same on every rank,
// but the number of recordings between them may differ, so ids leave a gap for them.
constexpr int64_t kMaxBetweenMarks = 1'000'000;

std::string as_python(const std::vector<int>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text + "]";
}

// Writes a list of the sizes of one tensor.
void put_sizes(const RecordedTensor& tensor, pickle::Writer& out) {
  out.empty_list().empty_list();
  for (int i = 0; i < tensor.dims; ++i) out.integer(tensor.sizes[i]).append();
  out.append();
}

void put_type(const RecordedTensor& tensor, pickle::Writer& out) {
  out.empty_list().text(c10::toString(tensor.type)).append();
}

void put_time(int64_t ns, pickle::Writer& out) {
  if (ns == 0) {
    out.none();
  } else {
    out.integer(ns);
  }
}

const char* state_of(CollectiveState progress) {
  switch (progress) {
    case CollectiveState::kScheduled:
      return "scheduled";
    case CollectiveState::kStarted:
      return "started";
    case CollectiveState::kCompleted:
      return "completed";
  }
  return "";
}

// The analyser accepts only names of NCCL and XCCL, whatever backend ran the operation.
std::string name_of(const Recording& recording, const RecordedGroup& group) {
  std::string name = std::string("nccl:") + recording.operation;
  if (!group.messages()) return name;
  const std::string from = std::to_string(group.source);
  const std::string to = std::to_string(group.destination);
  return name + " " + (recording.operation == std::string_view("send") ? from + "->" + to : to + "<-" + from);
}

void put_entry(const Recording& recording, const RecordedGroup& group, pickle::Writer& out) {
  out.empty_dict().mark();
  out.text("record_id").integer(recording.mark * kMaxBetweenMarks + recording.since_mark);
  out.text("pg_id").integer(recording.group);
  out.text("process_group").mark().text(group.name).text(group.description).tuple();
  out.text("collective_seq_id").integer(recording.sequence);
  out.text("p2p_seq_id").integer(group.messages() ? recording.sequence : 0);
  out.text("op_id").integer(recording.number);
  out.text("profiling_name").text(name_of(recording, group));
  out.text("time_created_ns").integer(recording.created_ns);
  if (recording.progress == CollectiveState::kCompleted) {
    out.text("duration_ms").real(static_cast<double>(recording.completed_ns - recording.started_ns) / 1e6);
  }
  put_sizes(recording.input, out.text("input_sizes"));
  put_type(recording.input, out.text("input_dtypes"));
  put_sizes(recording.output, out.text("output_sizes"));
  put_type(recording.output, out.text("output_dtypes"));
  out.text("state").text(state_of(recording.progress));
  put_time(recording.started_ns, out.text("time_discovered_started_ns"));
  put_time(recording.completed_ns, out.text("time_discovered_completed_ns"));
  out.text("retired").boolean(recording.waited);
  out.text("timeout_ms").integer(recording.timeout.count());
  out.text("is_p2p").boolean(group.messages());
  out.set_items();
}

void put_configuration(const std::vector<RecordedGroup>& groups, pickle::Writer& out) {
  out.empty_dict().mark();
  for (const RecordedGroup& group : groups) {
    out.text(group.name).empty_dict().mark();
    out.text("name").text(group.name);
    out.text("desc").text(group.description);
    out.text("ranks").text(as_python(group.ranks));
    out.set_items();
  }
  out.set_items();
}

void put_status(const std::vector<RecordedGroup>& groups, pickle::Writer& out) {
  out.empty_dict().mark();
  for (size_t i = 0; i < groups.size(); ++i) {
    out.text(std::to_string(i)).empty_dict().mark();
    out.text("last_enqueued_collective").integer(groups[i].last_issued);
    out.text("last_started_collective").integer(groups[i].last_started);
    out.text("last_completed_collective").integer(groups[i].last_completed);
    out.set_items();
  }
  out.set_items();
}

}  // namespace

std::string to_pickle(const Flight& flight) {
  pickle::Writer out(2);
  out.empty_dict().mark();
  out.text("version").text(kVersion);
  out.text("comm_lib_version").text("Titan " TITAN_VERSION);
  put_configuration(flight.groups, out.text("pg_config"));
  put_status(flight.groups, out.text("pg_status"));
  out.text("entries").empty_list();
  for (const Recording& recording : flight.recordings) {
    put_entry(recording, flight.groups[recording.group], out);
    out.append();
  }
  return out.set_items().finish();
}

}  // namespace titan::comm
