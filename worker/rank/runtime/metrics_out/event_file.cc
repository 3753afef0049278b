#include "worker/rank/runtime/metrics_out/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/host/host_facts.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::runtime {
namespace {

constexpr absl::string_view kPrefix = "events.out.tfevents.";

template <typename T>
void append_fixed(std::string& out, T value) {  // Little endian, like this machine.
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Protocol buffer wire format: field number and wire type in one varint, then the value.
void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void append_tag(std::string& out, uint64_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

// TFRecord's masking, which keeps a CRC strong for data that contains CRCs.
uint32_t masked_crc(std::string_view data) {
  const uint32_t crc = storage::crc32c(data.data(), data.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// Returns the newest second in the folder's file names, or 0 if it has none. TensorBoard reads files in the order of
// their names.
absl::StatusOr<int64_t> newest_second(storage::Files& files, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  int64_t newest = 0;
  for (const absl::string_view name : names) {
    absl::string_view rest = name;
    int64_t second = 0;
    if (absl::ConsumePrefix(&rest, kPrefix) && absl::SimpleAtoi(rest.substr(0, rest.find('.')), &second))
      newest = std::max(newest, second);
  }
  return newest;
}

std::string event_head(absl::Time wall) {
  std::string event;
  append_tag(event, 1, kFixed64);  // Event.wall_time
  append_fixed(event, absl::ToDoubleSeconds(wall - absl::UnixEpoch()));
  return event;
}

std::string summary_event(int64_t step, absl::Time wall, const std::string& summary) {
  std::string event = event_head(wall);
  append_tag(event, 2, kVarint);  // Event.step
  append_varint(event, static_cast<uint64_t>(step));
  append_bytes(event, 5, summary);  // Event.summary
  return event;
}

void append_number(std::string& out, uint64_t field, uint64_t value) {
  append_tag(out, field, kVarint);
  append_varint(out, value);
}

}  // namespace

std::string tf_record(std::string_view data) {
  std::string record;
  append_fixed(record, static_cast<uint64_t>(data.size()));
  append_fixed(record, masked_crc(std::string_view(record.data(), 8)));
  record += data;
  append_fixed(record, masked_crc(data));
  return record;
}

std::string session_start(int64_t step, absl::Time wall) {
  std::string log;
  append_tag(log, 1, kVarint);  // SessionLog.status
  append_varint(log, 1);        // START
  std::string event = event_head(wall);
  append_tag(event, 2, kVarint);  // Event.step
  append_varint(event, static_cast<uint64_t>(step));
  append_bytes(event, 7, log);  // Event.session_log
  return event;
}

std::string image_event(int64_t step, absl::Time wall, const BoardImage& picture) {
  constexpr uint64_t kRgb = 3;
  std::string image, entry, summary;
  append_number(image, 1, static_cast<uint64_t>(picture.height));  // Summary.Image.height, width, colorspace
  append_number(image, 2, static_cast<uint64_t>(picture.width));
  append_number(image, 3, kRgb);
  append_bytes(image, 4, picture.png);  // Summary.Image.encoded_image_string
  append_bytes(entry, 1, picture.tag);  // Summary.Value.tag
  append_bytes(entry, 4, image);        // Summary.Value.image
  append_bytes(summary, 1, entry);      // Summary.value
  return summary_event(step, wall, summary);
}

std::string scalar_event(int64_t step, absl::Time wall, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    append_bytes(entry, 1, tag);     // Summary.Value.tag
    append_tag(entry, 2, kFixed32);  // Summary.Value.simple_value
    append_fixed(entry, static_cast<float>(value));
    append_bytes(summary, 1, entry);  // Summary.value
  }
  return summary_event(step, wall, summary);
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::create(storage::Files& files, const std::string& folder,
                                                             absl::Time now, int64_t first_step) {
  static std::atomic<int> counter{0};
  const std::string host = host::hostname();
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const int64_t newest, newest_second(files, folder));
  const std::string path = storage::join_path(
      folder, absl::StrCat(kPrefix, std::max(absl::ToUnixSeconds(now), newest + 1), ".",
                           host.empty() ? "localhost" : host, ".", ::getpid(), ".", counter.fetch_add(1)));
  TITAN_ASSIGN_OR_RETURN(auto file, files.create(path));
  std::string version = event_head(now);
  append_bytes(version, 3, "brain.Event:2");  // Event.file_version, which readers expect first.
  TITAN_RETURN_IF_ERROR(file->append(absl::StrCat(tf_record(version), tf_record(session_start(first_step, now)))));
  return std::unique_ptr<EventFile>(new EventFile(std::move(file), path));
}

absl::Status EventFile::add_scalars(int64_t step, absl::Time wall,
                                    const std::vector<std::pair<std::string, double>>& scalars) {
  return file_->append(tf_record(scalar_event(step, wall, scalars)));
}

absl::Status EventFile::add_image(int64_t step, absl::Time wall, const BoardImage& image) {
  return file_->append(tf_record(image_event(step, wall, image)));
}

}  // namespace titan::runtime
