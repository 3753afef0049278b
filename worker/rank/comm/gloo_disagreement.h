#pragma once

#include <functional>
#include <string>

namespace titan::comm {

// Where ranks bring different sizes to a collective over sockets, it is Gloo's own thread that finds a message too long
// for what waits for it: an exception that nobody catches there, which ends the process by SIGABRT and says nothing to
// anybody. From now on `call` is called before, on that thread, with words that say so (is_disagreement() in group.h
// holds for them). It may end the process, and is waited for when another thread would end it meanwhile; other uncaught
// exceptions go where they went before. One call a process.
void before_gloo_aborts(std::function<void(const std::string& words)> call);

}  // namespace titan::comm
