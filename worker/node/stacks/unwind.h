#pragma once

#include <elfutils/libdwfl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/node/stacks/capture.h"
#include "worker/node/stacks/elf_file.h"

namespace titan::stacks {

struct Frame {
  ElfFile* file = nullptr;  // Null: code of no file.
  uint64_t address = 0;     // As the file has it.
  bool is_return = false;   // The call is the instruction before it.

  uint64_t call() const { return is_return ? address - 1 : address; }
  bool operator==(const Frame&) const = default;
};

struct Stack {
  std::vector<Frame> frames;  // The innermost first.
  bool more = false;          // There are more than were asked for.
};

// Follows captured stacks of one process by the tables that its files have for exceptions, and by frame pointers where
// there are none. Neither debug files nor a debuginfod server are asked: it takes what is mapped.
class Unwinder {
 public:
  // `pid`: of the process, or of a thread of it that lives.
  Unwinder(pid_t pid, ElfFiles& files);
  ~Unwinder();
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;

  // Why no stack can be followed; empty: all is well.
  const std::string& problem() const { return problem_; }
  Stack follow(const Capture& capture, size_t most_frames);

  struct Module;

 private:
  static bool get_thread(Dwfl* dwfl, pid_t tid, void* self, void** thread);
  static pid_t next_thread(Dwfl* dwfl, void* self, void** thread);
  static bool read_memory(Dwfl* dwfl, Dwarf_Addr address, Dwarf_Word* word, void* self);
  static bool set_registers(Dwfl_Thread* thread, void* self);
  static int take_frame(Dwfl_Frame* frame, void* self);
  void name_modules(const std::vector<Mapping>& mappings, ElfFiles& files);
  Frame frame_at(uint64_t program_counter) const;

  const pid_t pid_;
  Dwfl* dwfl_ = nullptr;
  std::vector<std::unique_ptr<Module>> modules_;
  std::string problem_;
  // Of the stack that is followed.
  const Capture* capture_ = nullptr;
  Stack* stack_ = nullptr;
  size_t most_frames_ = 0;
};

}  // namespace titan::stacks
