// Files that ranks share with their node: user programs write them, and may write anything.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/beacon.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/rank_protocol/spool.h"
#include "controller/job/divergence.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

namespace protocol = rank_protocol;

// Returns a rank's page with patches from `bytes`: otherwise no input would pass the checks of size and magic number.
std::string over(const std::string& page, std::string_view bytes) {
  std::string text = page;
  size_t at = 0;
  // A patch is two bytes of offset (in words), one of length (in bytes), and the bytes.
  Parts parts(bytes);
  while (!parts.empty()) {
    at = parts.number(2) * 4 % text.size();
    const std::string_view patch = parts.take(parts.byte() % 64);
    std::copy_n(patch.begin(), std::min(patch.size(), text.size() - at),
                text.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return text;
}

std::string read_back(const std::string& path) {
  std::string text;
  FILE* const file = std::fopen(path.c_str(), "rb");
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, got);
  std::fclose(file);
  return text;
}

const std::string& beacon_page() {
  static const std::string page = [] {
    const std::string path = scratch_folder() + "/beacon";
    (void)*protocol::Beacon::create(path, 3);
    return read_back(path);
  }();
  return page;
}

// Returns the page of a rank with two groups and three calls.
const std::string& flight_page() {
  static const std::string page = [] {
    const std::string path = scratch_folder() + "/flight";
    {
      const auto tail = *protocol::FlightTail::create(path, 0);
      tail->add_group(0, {"tp", "0-1", 7, 0});
      tail->add_group(1, {"dp", "0,2", 9, 0});
      for (int i = 0; i < 3; ++i)
        tail->add_call(i, {i % 2, i / 2 + 1, "all_reduce", "float", 16, 1, i, 1000 + i,
                           i < 2 ? protocol::CallState::kCompleted : protocol::CallState::kInside});
    }
    return read_back(path);
  }();
  return page;
}

void require_text(const std::string& text) {
  require(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }),
          "text of a rank can be shown");
}

}  // namespace

TITAN_FUZZ(beacon, 2000) {
  Parts parts(bytes);
  const bool whole = parts.byte() % 8 != 0;
  const std::string file = whole ? over(beacon_page(), parts.rest()) : std::string(parts.rest());
  const auto reader = protocol::BeaconReader::open(scratch_file("b", file));
  require(reader.ok() || !whole || file.substr(0, 12) != beacon_page().substr(0, 12), "a complete page is read");
  if (!reader.ok()) return;
  const protocol::BeaconPage& page = (*reader)->page();
  require_text(protocol::name(static_cast<protocol::Phase>(page.phase.load())));
  require((*reader)->write(page.command, 2u).ok() && page.command == 2, "a word is written");
  scratch_file("b", file.substr(0, file.size() / 2));
  require(!(*reader)->look().ok() && page.command == 2, "the last good copy of a truncated page stays");
}

// Up to four ranks of one job, and where they diverge.
TITAN_FUZZ(flight, 1500) {
  std::vector<protocol::RankFlight> ranks;
  Parts parts(bytes);
  for (int rank = 0; rank < 4; ++rank) {
    const auto flight = protocol::read_flight_tail(scratch_file("f", over(flight_page(), parts.next())));
    if (!flight.ok()) continue;
    require(flight->calls.size() <= protocol::FlightTail::kCalls, "no more calls than the file holds");
    for (const auto& call : flight->calls) {
      require(call.group >= 0 && static_cast<size_t>(call.group) < flight->groups.size(), "calls are of known groups");
      require_text(call.operation);
    }
    ranks.push_back(*flight);
    if (rank > 0 && !ranks.empty()) ranks.back().rank = rank;
  }
  if (const auto found = job::first_divergence(ranks)) {
    require(!found->ranks.empty() && std::is_sorted(found->ranks.begin(), found->ranks.end()),
            "a divergence names its ranks in order");
    require_text(found->message());
  }
  require(!protocol::read_flight_tail(scratch_file("f", bytes)).ok() || bytes.size() >= flight_page().size(),
          "a truncated file is refused");
}

TITAN_FUZZ(spool, 1500) {
  Parts parts(bytes);
  const int64_t batch_bytes = 1 + static_cast<int64_t>(parts.byte()) * 16;
  const std::string file(parts.rest());
  const std::string path = scratch_file("s", file);
  int64_t offset = 0;
  for (;;) {
    const auto batch = protocol::read_spool(path, offset, batch_bytes);
    if (!batch.ok()) break;
    require(batch->next_offset >= offset && batch->next_offset <= static_cast<int64_t>(file.size()), "offsets grow");
    require(!batch->was_cut, "the file has not become shorter");
    const int64_t start = offset;
    int64_t damaged = 0, lines = 0;
    for (const protocol::DamagedRange& part : batch->damage) {
      require(part.offset >= start && part.bytes > 0 && part.offset + part.bytes <= batch->next_offset,
              "damage lies in what was read");
      damaged += part.bytes;
    }
    for (const protocol::SpoolLine& line : batch->lines) {
      require(line.sequence > 0 && line.end_offset > offset, "lines are numbered, and in order");
      require(file[static_cast<size_t>(line.end_offset - 1)] == '\n', "a line is complete");
      require(line.json.size() <= protocol::kMaxLineLength, "and not longer than a message may be");
      offset = line.end_offset;
      lines += static_cast<int64_t>(line.json.size()) + 1;
    }
    offset = batch->next_offset;
    const bool may_be_cut = static_cast<int64_t>(file.size()) > protocol::kMaxLineLength;
    require(may_be_cut || damaged + lines == offset - start, "skipped bytes are reported as damage");
    if (offset == start) break;
  }
  auto writer = protocol::SpoolWriter::open(path);
  if (!writer.ok()) return;
  require(writer->append("warning", {{"message", file.substr(0, 100)}}).ok(), "numbering continues");
  const auto last = protocol::SpoolWriter::open(path);
  require(last.ok(), "appended events are read");
}

}  // namespace titan::fuzz
