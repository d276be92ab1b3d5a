// Transfers by NCCL; see nccl.h.
#include "nccl.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "library.h"

namespace haliax::cuda {
namespace {

// The used part of NCCL's interface, which is unchanged since NCCL 2.7.
struct Id {
  char bytes[128];
};
constexpr int kBytes = 0;  // ncclInt8
struct Nccl {
  using Comm = void*;
  int (*make_id)(Id*) = nullptr;
  int (*join)(Comm*, int ranks, Id, int rank) = nullptr;
  int (*begin_group)() = nullptr;
  int (*end_group)() = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, Comm, void* stream) = nullptr;
  int (*receive)(void*, std::size_t, int type, int peer, Comm, void* stream) = nullptr;
  int (*abort)(Comm) = nullptr;
  int (*destroy)(Comm) = nullptr;
  const char* (*error_string)(int) = nullptr;
  bool there = false;

  Nccl() {
    const Library library({"libnccl.so.2"});
    auto find = [&](auto& f, const char* name) { return library.find(f, name); };
    there = find(make_id, "ncclGetUniqueId") && find(join, "ncclCommInitRank") &&
            find(begin_group, "ncclGroupStart") && find(end_group, "ncclGroupEnd") &&
            find(send, "ncclSend") && find(receive, "ncclRecv") && find(abort, "ncclCommAbort") &&
            find(destroy, "ncclCommDestroy") && find(error_string, "ncclGetErrorString");
  }
};
const Nccl& nccl() {
  static const Nccl one;
  if (!one.there)
    throw Error(
        "[cuda] libnccl.so.2 is not found: "
        "GPUs communicate with each other by NCCL; add it to the loader's path");
  return one;
}
void must(int status, const char* what) {
  if (status != 0)
    throw Error(fmt::format("[cuda] NCCL error ({}): {}", what, nccl().error_string(status)));
}
struct Member {
  Nccl::Comm comm = nullptr;
  bool aborted = false;
};
Member& member(Handle h) { return *static_cast<Member*>(h); }

}  // namespace

std::string nccl_id() {
  Id id{};
  must(nccl().make_id(&id), "an id");
  return {id.bytes, sizeof id.bytes};
}
Handle nccl_join(const std::string& text, int ranks, int rank) {
  Id id{};
  std::memcpy(id.bytes, text.data(), sizeof id.bytes);
  Nccl::Comm comm = nullptr;
  must(nccl().join(&comm, ranks, id, rank), "a communicator");
  return new Member{comm};
}
void nccl_exchange(Handle h, void* stream, const std::vector<Transfer>& all) {
  auto& m = member(h);
  if (m.aborted) return;
  auto& lib = nccl();
  must(lib.begin_group(), "a group");
  int status = 0;
  for (auto& t : all)
    if (status == 0)
      status = t.sends ? lib.send(t.at, std::size_t(t.bytes), kBytes, t.peer, m.comm, stream)
                       : lib.receive(t.at, std::size_t(t.bytes), kBytes, t.peer, m.comm, stream);
  const int ended = lib.end_group();
  must(status, "a send or a receive");
  must(ended, "a group");
}
void nccl_abort(Handle h) {
  if (auto& m = member(h); !std::exchange(m.aborted, true)) nccl().abort(m.comm);
}
void nccl_leave(Handle h) {
  if (!member(h).aborted) nccl().destroy(member(h).comm);
  delete &member(h);
}

}  // namespace haliax::cuda
